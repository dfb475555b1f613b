"""The interface of CPU backends to the engine: numpy arrays in, numpy arrays out.

Letters in shapes are those of `kernels.ops`. Two backends implement it: the native library (`kernels.cpu.native`),
which needs no torch, and torch's ops (`kernels.cpu.torch_host`), where the library is missing or has no kernels for the
processor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kernels.arrays import Array, Dtype, Flags, Floats, Ints, Words
from kernels.delta import StateRows

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step in their sequences and in the paged KV pool.

    block_tables: int64 [R, B], each row's blocks in order; entries past its context are never read. Each row is
        contiguous; rows may have any stride.
    query_lens: int64 [R], tokens of each row in the step; rows are adjacent. Backends may be faster if rows with equal
        token counts are neighbours, ordered by context.
    context_lens: int64 [R], tokens of each row's context including this step's, which are its last.

    states: of a model with recurrent layers.
    window_tables: of a model whose KV is in groups, `block_tables` of the groups after the first. Entries that no token
        of the row attends to are never read.
    adapters: int64 [R], the slot of each row's adapter, or `kernels.adapters.NO_ADAPTER`; None: no row has one.

    Blocks that belong to no row may hold anything. If the model `reads_past_context`, slots past a row's context, in
    its last block, must hold finite numbers.
    """

    block_tables: Ints
    query_lens: Ints
    context_lens: Ints
    states: StateRows | None = None
    window_tables: tuple[Ints, ...] = ()
    adapters: Ints | None = None


@dataclass(frozen=True)
class SamplingColumns(Generic[A]):
    """Sampling parameters of each row of a step, one column each; neutral where unused.

    inverse_temperature: float32 [R]; 1 for greedy rows.
    noise_scale: float32 [R]; 0 for greedy rows, else 1.
    top_k: int64 [R]; V where off. top_p: float32 [R]; 1 where off. min_p: float32 [R]; 0 where off.
    keys: int64 [R, 2]; two 32-bit words derived from (seed, position), see `kernels.noise`.
    """

    inverse_temperature: A
    noise_scale: A
    top_k: A
    top_p: A
    min_p: A
    keys: A


@dataclass(frozen=True)
class LogitEdits(Generic[A]):
    """Terms to add to a step's logits, as a coordinate list: rows and tokens int64 [E], values float32 [E].

    A (row, token) may occur several times; -inf forbids the token. An empty list changes nothing.
    """

    rows: A
    tokens: A
    values: A


@dataclass(frozen=True)
class Penalties(Generic[A]):
    """Token counts and penalties of each row (CTRL, arXiv 1909.05858; OpenAI's API).

    tokens, times: int32 [S, C]. A line has the distinct tokens of a sequence in any order, and how often each occurs in
        the output: 0 for one of the prompt alone.
    lines, lengths: int64 [R], each row's line and how many of its entries are valid. No entries: no penalty.
    repetition, presence, frequency: float32 [R].
    draft_rows, draft_tokens: int64 [E], draft_times: int32 [E]. Counts of tokens that occur in a row's drafts, over
        output and drafts together, whether the line has the token or not. Each (row, token) once.

    A positive logit is divided by the repetition penalty, a negative one multiplied by it. From a token of the output,
    the presence penalty is then subtracted, and the frequency penalty once for each occurrence.
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
"""The product of [T, in] in the compute dtype with a packed weight [out, in]: float32 [T, out]."""


class HostOps(Protocol):
    """The ops around a model's forward pass. Definitions and tolerances: `kernels.reference`. Logits are float32 [R, V]
    with contiguous rows at any stride."""

    @property
    def dtype(self) -> Dtype:
        """The dtype of hidden states."""
        ...

    def pack_rows(self, rows: Array) -> HostProduct:
        """A product with some rows [F, H] of a head, in the compute dtype."""
        ...

    def allocate_states(self, num_slots: int, num_layers: int, words: int) -> Floats:
        """float32 [slots, layers, words] of recurrent states."""
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
