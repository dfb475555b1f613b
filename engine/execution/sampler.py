"""Samples tokens and log-probabilities from a step's logits.

Sampling is argmax(logits / T + Gumbel noise), the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014, A* Sampling).
The noise is a hash of (seed, position, token id), so a token does not depend on the batch or on preemptions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.execution.changes import BatchChanges, changes_anything
from engine.execution.logprobs import measure
from engine.execution.masks import TokenMasks
from engine.execution.slots import SlotTable, slot_of
from engine.request import Request, TokenLogprob
from kernels.arrays import Floats, Ints, int_array
from kernels.host import HostColumns, HostOps
from kernels.noise import mixed_seeds, noise_keys


class Draw(NamedTuple):
    """One token to sample for a request, at the position after its tokens and these drafts."""

    request: Request
    drafts: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        """Index of the token in its sequence."""
        return len(self.request.tokens) + len(self.drafts)


@dataclass(frozen=True, slots=True)
class DrawBatch:
    """Values that stay the same for a list of draws from step to step.

    columns: without keys. mixed: uint64 [R], the mixed seeds; None if no draw has noise. wanted: indices of draws with
    log-probabilities. masked: whether any has a grammar. changes: other changes to the logits, or None.
    """

    draws: Sequence[Draw]
    columns: HostColumns
    mixed: npt.NDArray[np.uint64] | None
    wanted: list[int]
    masked: bool
    changes: BatchChanges | None


class Drawn(NamedTuple):
    """The sampled token of each row of logits. `failed`: rows whose token is to be discarded, because the grammar
    failed or no token is allowed."""

    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    failed: frozenset[int]


class Sampler:
    """Samples the next token of each request from its row of logits. Penalties and noise depend on the preceding tokens
    alone, drafts included."""

    def __init__(self, ops: HostOps, slots: SlotTable, vocab_size: int) -> None:
        self._ops, self._slots = ops, slots
        self._masks, self._vocab_size = TokenMasks(ops, vocab_size), vocab_size
        self._batch: DrawBatch | None = None

    def plain_columns(self, draws: Sequence[Draw]) -> HostColumns | None:
        """The columns of draws that depend on the largest sum of logit and noise alone: without thresholds, changes to
        the logits, grammars and log-probabilities. None: a draw has some."""
        return self.plain_columns_of(self.batch_of(draws))

    def plain_columns_of(self, batch: DrawBatch) -> HostColumns | None:
        """The same for the draws of a batch."""
        if batch.masked or batch.changes is not None or batch.wanted:
            return None
        columns = batch.columns
        if (columns.top_k < self._vocab_size).any() or (columns.top_p < 1).any() or columns.min_p.any():
            return None
        return _with_keys(batch)

    def batch_of(self, draws: Sequence[Draw]) -> DrawBatch:
        """The values of these draws, kept until the next ones are others. They stay those of the requests that have the
        slots now."""
        batch = self._batch
        if batch is None or batch.draws is not draws:
            self._batch = batch = _new_batch(draws, self._slots)
        return batch

    def sample(self, logits: Floats, draws: Sequence[Draw]) -> Drawn:
        """One token for each row of float32 [R, V], with its log-probability where requested. Overwrites `logits`.

        Fastest when `draws` is the same list object as in the last call, of requests in the same slots.
        Log-probabilities are the model's own: before grammars, penalties, biases, temperature and thresholds.
        """
        return self.sample_batch(logits, self.batch_of(draws))

    def sample_batch(self, logits: Floats, batch: DrawBatch) -> Drawn:
        """The same for the draws of a batch, whose requests may have left their slots since it was made."""
        wanted, draws = batch.wanted, batch.draws
        raw = logits[wanted] if wanted else None
        failed = self._masks.apply(logits, draws) if batch.masked else frozenset()
        if batch.changes is not None:
            batch.changes.current().apply(self._ops, logits)
        drawn = self._ops.sample(logits, _with_keys(batch))
        if batch.masked or batch.changes is not None:
            failed |= _forbidden(logits, drawn)
        tokens: list[int] = drawn.tolist()
        logprobs: list[TokenLogprob | None] = [None] * len(tokens)
        if raw is not None:
            counts = [draws[i].request.params.logprobs or 0 for i in wanted]
            entries = token_logprobs(self._ops, raw, [tokens[i] for i in wanted], counts)
            for i, entry in zip(wanted, entries, strict=True):
                logprobs[i] = entry
        return Drawn(tokens, logprobs, failed)


def _forbidden(logits: Floats, drawn: Ints) -> frozenset[int]:
    """Rows in which every token was masked: the sampled one is, too."""
    return frozenset(np.flatnonzero(np.isneginf(logits[np.arange(len(drawn)), drawn])).tolist())


def accepted_drafts(drafts: Sequence[int], drawn: Sequence[int]) -> int:
    """Length of the longest prefix of `drafts` that equals what was sampled in its place."""
    for index, (draft, token) in enumerate(zip(drafts, drawn, strict=True)):
        if draft != token:
            return index
    return len(drafts)


def sampling_columns(draws: Sequence[Draw], slots: SlotTable) -> HostColumns:
    """The sampling parameters and noise keys of the draws."""
    return _with_keys(_new_batch(draws, slots))


def _new_batch(draws: Sequence[Draw], slots: SlotTable) -> DrawBatch:
    rows = int_array([slot_of(draw.request) for draw in draws])
    params = [draw.request.params for draw in draws]
    columns = HostColumns(
        inverse_temperature=slots.inverse_temperature[rows],
        noise_scale=slots.noise_scale[rows],
        top_k=slots.top_k[rows],
        top_p=slots.top_p[rows],
        min_p=slots.min_p[rows],
        keys=np.zeros((len(draws), 2), dtype=np.int64),
    )
    noisy = any(request_params.temperature for request_params in params)
    return DrawBatch(
        draws,
        columns,
        mixed_seeds([draw.request.seed for draw in draws]) if noisy else None,
        [i for i, request_params in enumerate(params) if request_params.logprobs is not None],
        masked=any(draw.request.matcher is not None for draw in draws),
        changes=BatchChanges(draws, slots) if any(changes_anything(draw.request) for draw in draws) else None,
    )


def _with_keys(batch: DrawBatch) -> HostColumns:
    """The columns with the noise keys of the next tokens."""
    if batch.mixed is None:
        return batch.columns
    # The position of a token is its index in the sequence, so that a replay draws the same noise.
    keys = noise_keys(batch.mixed, [len(draw.request.tokens) + len(draw.drafts) for draw in batch.draws])
    return replace(batch.columns, keys=keys)


def token_logprobs(ops: HostOps, logits: Floats, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprob]:
    """Log-probability of one token for each row of float32 [R, V], and of the row's `counts[i]` most likely tokens."""
    return measure(ops, logits, int_array(tokens), max(counts)).entries(counts)
