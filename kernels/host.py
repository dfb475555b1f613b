"""What computes on the processor, seen from the engine: numpy arrays in, numpy arrays out, whoever computes.

Letters in shapes are those of `kernels.ops`. Two have this face: the native library (`kernels.cpu.native`), which needs
no torch, and torch's ops (`kernels.cpu.torch_host`), where there is no library or it has no kernels for the processor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kernels.arrays import Array, Dtype, Flags, Floats, Ints, Words

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class StepRows:
    """Where the tokens of a step stand in their sequences and in the KV pool.

    block_tables: int64 [R, B], the row's blocks in order; entries past its context are never read. Its rows lie
        anywhere, each contiguous.
    query_lens: int64 [R]; the tokens of row i are that many consecutive ones of the step, rows one after another.
        Backends may be faster where rows of as many tokens are neighbours, and of these those of similar context.
    context_lens: int64 [R], the row's tokens up to and including this step's: they are the last of its context.

    Blocks that belong to no row may hold anything. Where the model `reads_past_context`, slots of a row's last block
    that lie past its context must hold finite numbers.
    """

    block_tables: Ints
    query_lens: Ints
    context_lens: Ints


@dataclass(frozen=True)
class SamplingColumns(Generic[A]):
    """How each row of a step is sampled: one column a parameter, neutral where a request does not use it.

    inverse_temperature: float32 [R]; 1 for greedy rows.
    noise_scale: float32 [R]; 0 for greedy rows, else 1.
    top_k: int64 [R]; V where off. top_p: float32 [R]; 1 where off. min_p: float32 [R]; 0 where off.
    keys: int64 [R, 2]; two 32-bit words drawn from (seed, position), see `kernels.noise`.
    """

    inverse_temperature: A
    noise_scale: A
    top_k: A
    top_p: A
    min_p: A
    keys: A


@dataclass(frozen=True)
class LogitEdits(Generic[A]):
    """Sums to add to some of a step's logits, as a coordinate list: rows and tokens int64 [E], values float32 [E].

    A (row, token) may come several times; -inf forbids the token. An empty list changes nothing.
    """

    rows: A
    tokens: A
    values: A


@dataclass(frozen=True)
class Penalties(Generic[A]):
    """The tokens that come before the one to draw, and what they cost it (CTRL, arXiv 1909.05858; OpenAI's API).

    tokens, times: int32 [S, C]. A line has the distinct tokens of a sequence in any order, and how often each comes in
        the output: 0 for one of the prompt alone.
    lines, lengths: int64 [R], of each row of logits: its line, and how many entries of that count. No entries: no
        penalty.
    repetition, presence, frequency: float32 [R].
    draft_rows, draft_tokens: int64 [E], draft_times: int32 [E]. A token among the drafts of a row comes so often in
        output and drafts together, whether it is in the row's line or not. Each (row, token) once.

    A positive logit is divided by the repetition penalty, a negative one multiplied with it. A token that comes in the
    output then loses the presence penalty, and the frequency penalty once for each time.
    """

    tokens: A
    times: A
    lines: A
    lengths: A
    repetition: A
    presence: A
    frequency: A
    draft_rows: A
    draft_tokens: A
    draft_times: A


HostColumns = SamplingColumns[Array]
HostEdits = LogitEdits[Array]
HostPenalties = Penalties[Array]

HostProduct = Callable[[Array], Floats]
"""The product of [T, in] in the compute dtype with a weight [out, in] that was packed: float32 [T, out]."""


class HostOps(Protocol):
    """The ops around a model's forward pass. Meanings and tolerances: `kernels.reference`. Logits are float32 [R, V],
    whose rows lie anywhere, each contiguous."""

    @property
    def dtype(self) -> Dtype:
        """What hidden states are in."""
        ...

    def pack_rows(self, rows: Array) -> HostProduct:
        """A product with some rows [F, H], in the compute dtype, of a head."""
        ...

    def clear_blocks(self, kv: Array, block_ids: Ints) -> None: ...

    def copy_blocks(self, kv: Array, sources: Ints, targets: Ints) -> None: ...

    def edit_logits(self, logits: Floats, edits: HostEdits) -> None: ...

    def penalise(self, logits: Floats, penalties: HostPenalties, token_columns: Words | None = None) -> None: ...

    def mask_logits(self, logits: Floats, bitmask: Words) -> None: ...

    def sample(self, logits: Floats, columns: HostColumns) -> Ints: ...

    def sample_among(self, logits: Floats, token_ids: Ints, columns: HostColumns) -> Ints: ...

    def finite_rows(self, logits: Floats) -> Flags: ...

    def token_logprobs(self, logits: Floats, tokens: Ints) -> tuple[Floats, Floats, Ints]: ...
