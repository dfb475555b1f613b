"""The op table of torch backends and the values that ops take, with shapes.

Letters in shapes: T tokens of a step, R rows (requests) of a step, H hidden size, Hq and Hkv query and KV heads, D head
dimension, V vocabulary, N blocks of the pool, B blocks of a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels import host, weights
from kernels.adapter_sizes import LayerSizes
from kernels.device_adapters import DeviceAdapters
from kernels.device_states import DeviceStates
from kernels.layout import BLOCK_TOKENS, LayerSize, MixedBlocks
from kernels.weights import KVScales

Counts = npt.NDArray[np.int64]


class AttentionMetadata:
    """The rows of a step in their sequences and in the paged KV pool.

    Row i has `query_lens[i]` consecutive tokens of the step's tensors; rows are adjacent. Backends may be faster if
    rows with equal token counts are neighbours, ordered by context. `context_lens[i]`: tokens of the row's context
    including this step's, which are its last. Both int64 [R], on the host.

    block_tables: int64 [R, B], each row's blocks in order; entries past its context are never read.
    positions: int64 [T], position of each token in its sequence.
    slot_mapping: int64 [T], where its KV is stored: block id x 16 + offset.

    The last two are computed where a backend reads them, unless given (for padded steps).

    Slots past a row's context, in its last block, must hold finite numbers; blocks that belong to no row may hold
    anything.
    """

    __slots__ = ("_positions", "_slot_mapping", "block_tables", "context_lens", "query_lens")

    def __init__(
        self,
        block_tables: Tensor,
        query_lens: Sequence[int] | Counts,
        context_lens: Sequence[int] | Counts,
        *,
        positions: Tensor | None = None,
        slot_mapping: Tensor | None = None,
    ) -> None:
        self.block_tables = block_tables
        self.query_lens: Counts = np.ascontiguousarray(query_lens, dtype=np.int64)
        self.context_lens: Counts = np.ascontiguousarray(context_lens, dtype=np.int64)
        self._positions, self._slot_mapping = positions, slot_mapping

    @property
    def positions(self) -> Tensor:
        if self._positions is None:
            self._positions = torch.from_numpy(self._places()[1]).to(self.block_tables.device)
        return self._positions

    @property
    def slot_mapping(self) -> Tensor:
        if self._slot_mapping is None:
            owner = torch.from_numpy(self._places()[0]).to(self.block_tables.device)
            blocks = self.block_tables[owner, self.positions // BLOCK_TOKENS]
            self._slot_mapping = blocks * BLOCK_TOKENS + self.positions % BLOCK_TOKENS
        return self._slot_mapping

    def _places(self) -> tuple[Counts, Counts]:
        """Row and position of each token."""
        owner = np.repeat(np.arange(len(self.query_lens)), self.query_lens)
        before = self.context_lens - self.query_lens.cumsum()
        return owner, np.arange(len(owner)) + before[owner]


@dataclass(frozen=True, slots=True)
class RopeRows:
    """Rotary factors of a step's tokens in the compute dtype: cos and sin, both [T, 1, D/2].

    With `positions`, int64 [T], those of every position, both [P, D/2]: a backend that `rotates_by_position` reads a
    token's line itself.
    """

    cos: Tensor
    sin: Tensor
    positions: Tensor | None = None

    def of_tokens(self) -> "RopeRows":
        """The factors of the tokens, without positions."""
        if self.positions is None:
            return self
        return RopeRows(self.cos[self.positions][:, None], self.sin[self.positions][:, None])


@dataclass(frozen=True, slots=True)
class SlotSampling:
    """Sampling parameters by slot, kept on a device between steps: one line a slot, one column a parameter.

    S: number of slots. Meanings and neutral values are those of `SamplingColumns`, except that a draw's key is derived
    from the slot's seed and the position.

    inverse_temperature, noise_scale, top_p, min_p: float32 [S]. top_k: int32 [S]. seeds: int64 [S].
    repetition_penalty, presence_penalty, frequency_penalty: float32 [S]; 1, 0 and 0 where off.
    counts: int32 [S, V]; bit 0 is set for tokens of the prompt, the bits above count occurrences in the output.
        Undefined for slots without penalties.
    """

    inverse_temperature: Tensor
    noise_scale: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    repetition_penalty: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True)
class FiniteTokens:
    """Which of a step's hidden states are finite, and whose draws they concern.

    finite: int8 [T]. query_starts: int32 [R + 1], the first token of each row, and the end.
    rows: int32 [D], the row of each draw; None where draw d follows row d.
    """

    finite: Tensor
    query_starts: Tensor
    rows: Tensor | None = None


class SlotDraws(NamedTuple):
    """ids: int64 [D], arbitrary where a draw is not sound. sound: bool [D], whether the logits that it is sampled from
    have a finite maximum, and all hidden states of its row are finite, as far as known. finite: bool [D], the latter;
    None if it is not known."""

    ids: Tensor
    sound: Tensor
    finite: Tensor | None


class Linear(Protocol):
    """A weight packed for its backend. Maps [T, in_features] to [T, out_features]."""

    in_features: int
    out_features: int

    def __call__(self, x: Tensor) -> Tensor:
        """The product in the compute dtype."""
        ...

    def wide(self, x: Tensor) -> Tensor:
        """The product in float32. A backend may return more precision than its compute dtype has."""
        ...

    @property
    def logits_dtype(self) -> torch.dtype:
        """The narrower of float32 and the compute dtype in which `wide` would lose nothing."""
        ...

    def logits(self, x: Tensor, into: Tensor | None = None) -> Tensor:
        """`wide` in `logits_dtype`. `into`: the memory of the result, [T, out_features]; None: new memory."""
        ...


class Embedding(Protocol):
    """The embedding table [V, H] packed for its backend."""

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Rows [T, H] of tokens int64 [T], in the compute dtype."""
        ...


HeadNorms = weights.HeadNorms[Tensor]
LatentWeights = weights.LatentWeights[Tensor, Linear]
LayerWeights = weights.LayerWeights[Tensor, Linear]
ExpertWeights = weights.ExpertWeights[Tensor, Linear]
ExpertNorms = weights.ExpertNorms[Tensor]
LayerInput = weights.LayerInput[Tensor, Linear]
LayerInputs = weights.LayerInputs[Tensor, Linear, Embedding]
DeltaWeights = weights.DeltaWeights[Tensor, Linear]
MlpWeights = weights.MlpWeights[Linear]
ModelWeights = weights.ModelWeights[Tensor, Linear, Embedding]
SamplingColumns = host.SamplingColumns[Tensor]
LogitEdits = host.LogitEdits[Tensor]
Penalties = host.Penalties[Tensor]


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """Memory for the hidden states of T tokens, [T, H], and whether each of them is finite, int8 [T]."""

    rows: Tensor
    finite: Tensor

    @classmethod
    def empty(cls, tokens: int, size: int, dtype: torch.dtype, device: torch.device) -> Self:
        finite = torch.empty(tokens, dtype=torch.int8, device=device)
        return cls(torch.empty((tokens, size), dtype=dtype, device=device), finite)

    def first(self, tokens: int) -> Self:
        """The same memory for fewer tokens."""
        return type(self)(self.rows[:tokens], self.finite[:tokens])

    def keep(self, rows: Tensor) -> Tensor:
        """Copy rows [T, H] here, and check them."""
        self.finite.copy_(rows.isfinite().all(dim=-1))
        return self.rows.copy_(rows)


class Ops(weights.Packer[Tensor, Linear, Embedding], Protocol):
    """The ops of one device and dtype, on torch's tensors. Meanings, shapes and tolerances: `kernels.reference`, and
    `kernels.reference_experts` for `mixture`."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def on_gpu(self) -> bool: ...

    @property
    def rotates_by_position(self) -> bool:
        """Whether `RopeRows` may have positions."""
        ...

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> Linear: ...

    def embed(self, table: Tensor, token_ids: Tensor) -> Tensor: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...

    def add_branch(
        self,
        branch: Tensor,
        branch_norm: Tensor | None,
        residual: Tensor,
        next_norm: Tensor | None,
        eps: float,
        scalar: float = 1.0,
        into: CheckedRows | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Add a branch's output [..., H], normed by `branch_norm`, to the residual stream, times `scalar`: (the result
        normed by `next_norm`, the result). None: no norm. Each step is rounded; `residual` may be overwritten.
        `into`: memory for the normed result [T, H]."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor: ...

    def gelu_mul(self, gate_up: Tensor) -> Tensor: ...

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor: ...

    def gated_delta(
        self, mixed: Tensor, gates: Tensor, weights: DeltaWeights, place: int, states: DeviceStates, eps: float
    ) -> Tensor:
        """See `kernels.reference_delta.advance_rows`."""
        ...

    def settle_delta(
        self, mixed: Tensor, gates: Tensor, weights: DeltaWeights, place: int, states: DeviceStates, settled: Tensor
    ) -> None:
        """`gated_delta` with `settled` tokens of each row. mixed, gates: of the step's first rows, up to the last one
        with drafts at least."""
        ...

    def clamped_swiglu_mul(self, gate_up: Tensor) -> Tensor: ...

    def mixture(
        self,
        weights: ExpertWeights,
        x: Tensor,
        slot_mapping: Tensor,
        multiply: Callable[[Tensor], Tensor],
        expert_tokens: Tensor,
        routed: Tensor | None = None,
    ) -> Tensor:
        """The experts' part of a mixture. `routed`: the router's input, where it is not x."""
        ...

    def allocate_kv(self, num_layers: int, num_blocks: int, num_kv_heads: int, head_dim: int) -> Tensor:
        """KV [L, N, 16, 2, Hkv, D], or in int8 [L, N, bytes], all finite."""
        ...

    def allocate_mixed_kv(self, num_blocks: int, blocks: MixedBlocks) -> Tensor:
        """KV [1, N, size of a block], all finite. The size is `blocks.starts(layer_size)`'s."""
        ...

    @property
    def layer_size(self) -> LayerSize:
        """Numbers of one layer of a block, with what stands for its scales."""
        ...

    def allocate_adapters(self, layers: Sequence[LayerSizes], slots: int, max_rank: int) -> DeviceAdapters:
        """Slots for adapters of a model with these layers, all empty.

        Raises:
            ValueError: the backend does not take adapters of that rank.
        """
        ...

    def clear_blocks(self, kv: Tensor, block_ids: Tensor) -> None: ...

    def copy_blocks(self, kv: Tensor, sources: Tensor, targets: Tensor) -> None: ...

    def rotate_and_store(
        self,
        qkv: Tensor,
        norms: HeadNorms | None,
        rope: RopeRows,
        kv_layer: Tensor,
        slot_mapping: Tensor,
        scales: KVScales | None = None,
    ) -> Tensor:
        """`scales`: of KV in fp8; None: those of the op table. KV in another dtype has none."""
        ...

    def rotate(self, query: Tensor, norms: HeadNorms | None, rope: RopeRows) -> Tensor:
        """Queries [T, Hq, D] of a layer that stores no keys and values, normed head by head and rotated."""
        ...

    def plan_attention(self, metadata: AttentionMetadata) -> "AttentionPlan": ...

    def attend(
        self,
        query: Tensor,
        kv_layer: Tensor,
        plan: "AttentionPlan",
        window: int | None,
        cap: float | None = None,
        sinks: Tensor | None = None,
        scales: KVScales | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """`scales`: as for `rotate_and_store`. `scale`: of scores; None for 1/sqrt(D)."""
        ...

    def latent_queries(
        self,
        weights: LatentWeights,
        query: Tensor,
        down: Tensor,
        rope: RopeRows,
        kv_layer: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        """Absorbed queries [T, Hq, D'] of latent attention from query [T, Hq, D], of each head the rotated dimensions
        first. Stores the keys made of `down` [T, L + r]: see `kernels.reference_latent`."""
        ...

    def attend_latents(
        self, query: Tensor, kv_layer: Tensor, plan: "AttentionPlan", rotated: int, scale: float
    ) -> Tensor: ...

    def latent_values(self, weights: LatentWeights, means: Tensor) -> Tensor:
        """The values [T, Hq Dv] that the heads make of the mean latents [T, Hq, L]."""
        ...

    def edit_logits(self, logits: Tensor, edits: LogitEdits) -> None: ...

    def mask_logits(self, logits: Tensor, bitmask: Tensor) -> None: ...

    def sample(self, logits: Tensor, columns: SamplingColumns) -> Tensor: ...

    def sample_among(self, logits: Tensor, token_ids: Tensor, columns: SamplingColumns) -> Tensor: ...

    def finite_rows(self, logits: Tensor) -> Tensor: ...

    def token_logprobs(self, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...


class AttentionPlan(Protocol):
    """Values that a backend computes once a step and uses in every layer.

    Positions and slots are as in the metadata; a token with a negative slot is padding and is not stored.
    """

    @property
    def positions(self) -> Tensor: ...

    @property
    def slot_mapping(self) -> Tensor: ...
