"""Samples tokens from a step's logits on the device. Only the kernels that the rows need are launched."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.execution.device.draws import Draws, counting_drafts
from engine.execution.device.logprobs import measure
from engine.execution.device.masks import DrawMasks
from engine.execution.device.staging import on_device
from engine.execution.logprobs import Scores
from engine.execution.slots import uses_counts
from engine.scheduling.plan import ScheduledRow
from kernels.ops import FiniteTokens, LogitEdits, Ops, SlotSampling
from kernels.step import DrawnPlaces, Sequences, StepOps


@dataclass(frozen=True, slots=True)
class SamplingNeeds:
    """Needs of the sampling rows of a step beyond temperature. Indices are of draws: see `Draws`.

    thresholds: whether any uses top-k, top-p or min-p. penalties: whether any uses token counts. additions: (draw,
    token, value) to add to the logits. logprobs: the draws with log-probabilities, `tops` the number of most likely
    tokens of each. penalised: the rows, if there are drafts and penalties, and `draw_starts`, the first draw of each.
    grammars: whether any has a grammar.
    """

    thresholds: bool
    penalties: bool
    additions: list[tuple[int, int, float]]
    logprobs: list[int]
    tops: list[int]
    penalised: Sequence[ScheduledRow] = ()
    draw_starts: Sequence[int] = ()
    grammars: bool = False

    @property
    def plain(self) -> bool:
        return not (self.thresholds or self.penalties or self.additions or self.logprobs or self.grammars)


NO_NEEDS = SamplingNeeds(False, False, [], [], [])


@dataclass(frozen=True, slots=True)
class Drawn:
    """tokens: int64 [D], arbitrary where a row does not sample. sound: bool [D], whether the logits were finite, and
    the hidden states of the row, if checked. finite: bool [D], whether the latter were; None if not checked.
    scores: of the draws with log-probabilities, in their order."""

    tokens: Tensor
    sound: Tensor
    finite: Tensor | None = None
    scores: Scores[Tensor] | None = None


class SampledSlots(Protocol):
    """The sampling columns of slots, and the sequences that drawn tokens are stored in."""

    @property
    def columns(self) -> SlotSampling: ...

    @property
    def sequences(self) -> Sequences: ...


class DeviceSampler:
    """Samples a token for each row and stores it in the row's sequence, where the next step reads it. For a row with
    drafts, also samples after each draft and leaves the sequence to the host."""

    def __init__(self, ops: Ops, step_ops: StepOps, slots: SampledSlots) -> None:
        self._ops, self._step_ops, self._slots = ops, step_ops, slots

    def draw(
        self,
        lines: Tensor,
        logits: Tensor,
        draws: Draws,
        needs: SamplingNeeds,
        masks: DrawMasks | None = None,
        hidden: FiniteTokens | None = None,
    ) -> Drawn:
        """Sample from logits [D, V], which are overwritten. `lines`: encoded rows int32 [R, 8]. `hidden`: which hidden
        states of the rows are finite.

        Log-probabilities are the model's own: before grammars, penalties, biases, temperature and thresholds. What is
        added to logits is added in float32.
        """
        asking = on_device(needs.logprobs, torch.int64, logits.device) if needs.logprobs else None
        raw = None if asking is None else logits[asking]
        if needs.penalties or needs.additions:
            logits = logits.float()
        if masks is not None and masks.masked:
            self._step_ops.mask_rows(logits, masks.draws, masks.bits)
        columns, row_slots = self._slots.columns, draws.row_slots
        if needs.penalised:
            columns, row_slots = counting_drafts(columns, draws, needs.penalised, needs.draw_starts)
        if needs.additions:
            self._ops.edit_logits(logits, _edits(needs.additions, logits.device))
        tokens, sound, finite = self._step_ops.sample_slots(
            logits,
            columns,
            row_slots,
            draws.positions,
            uses_thresholds=needs.thresholds,
            uses_penalties=needs.penalties,
            hidden=hidden,
            places=DrawnPlaces(lines, self._slots.sequences.tokens, draws.rows, draws.last),
        )
        if raw is None:
            return Drawn(tokens, sound, finite)
        return Drawn(tokens, sound, finite, measure(self._ops, raw, tokens[asking], max(needs.tops)))


def sampling_needs(rows: Sequence[ScheduledRow], draw_starts: Sequence[int]) -> SamplingNeeds:
    """The needs of a step's rows, in order. `draw_starts`: index of each row's first draw."""
    thresholds = penalties = grammars = False
    additions: list[tuple[int, int, float]] = []
    logprobs: list[int] = []
    tops: list[int] = []
    for row, first in zip(rows, draw_starts, strict=True):
        draws = range(first, first + 1 + len(row.drafts))
        if not row.samples:
            continue
        params = row.request.params
        thresholds |= bool(params.temperature) and (bool(params.top_k or params.min_p) or params.top_p < 1.0)
        penalties |= uses_counts(params)
        grammars |= row.request.matcher is not None
        additions += [(draw, token, bias) for draw in draws for token, bias in params.logit_bias.items()]
        # From the row's position: the output may be one token longer than the host knows.
        made = row.start + row.tokens - len(row.drafts) - row.request.prompt_tokens
        if params.min_tokens > made:
            stops = dict.fromkeys((*params.stop_token_ids, *row.request.eos_token_ids))
            early = draws[: params.min_tokens - made]
            additions += [(draw, token, -math.inf) for draw in early for token in stops]
        if params.logprobs is not None:
            logprobs += draws
            tops += [params.logprobs] * len(draws)
    drafted = penalties and any(row.drafts for row in rows)
    penalised = (rows, draw_starts) if drafted else ((), ())
    return SamplingNeeds(thresholds, penalties, additions, logprobs, tops, *penalised, grammars)


def _edits(additions: Sequence[tuple[int, int, float]], device: torch.device) -> LogitEdits:
    rows, tokens, values = zip(*additions, strict=True)
    return LogitEdits(
        on_device(rows, torch.int64, device),
        on_device(tokens, torch.int64, device),
        on_device(values, torch.float32, device),
    )
