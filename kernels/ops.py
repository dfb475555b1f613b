"""The op table on torch's tensors and the values that ops take: what a backend has to provide, with shapes.

Letters in shapes: T tokens of a step, R rows (requests) of a step, H hidden size, Hq and Hkv query and KV heads,
D head dimension, V vocabulary, N blocks of the pool, B blocks of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels import host, weights
from kernels.layout import BLOCK_TOKENS

Counts = npt.NDArray[np.int64]


class AttentionMetadata:
    """Where the tokens of a step stand in their sequences and in the KV pool.

    The tokens of row i are `query_lens[i]` consecutive rows of the step's tensors, rows one after another. Backends may
    be faster where rows of as many tokens are neighbours, and of these those of similar context. `context_lens[i]`
    counts the row's tokens up to and including this step's: they are the last of its context. Both int64 [R], on the
    host.

    block_tables: int64 [R, B], the row's blocks in order; entries past its context are never read.
    positions: int64 [T], position of each token in its sequence.
    slot_mapping: int64 [T], where its KV goes: block id x 16 + offset.

    The last two are worked out where a backend reads them, unless they are given (of steps that are filled up).

    Slots of a row's last block that lie past its context must hold finite numbers; blocks that belong to no row
    may hold anything.
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
        """Of each token its row, and its position."""
        owner = np.repeat(np.arange(len(self.query_lens)), self.query_lens)
        before = self.context_lens - self.query_lens.cumsum()
        return owner, np.arange(len(owner)) + before[owner]


@dataclass(frozen=True, slots=True)
class RopeRows:
    """Rotary factors of a step's tokens: cos and sin, both [T, 1, D/2], in the compute dtype."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class KVScales:
    """How KV is kept in fp8 e4m3: what is stored is the key or value divided by its scale, one for all layers."""

    key: float
    value: float


@dataclass(frozen=True, slots=True)
class SlotSampling:
    """How requests are sampled, where a device keeps it between steps: a line a slot, a column a parameter.

    S is the number of slots. Meanings and neutral values are those of `SamplingColumns`, but that a draw's key comes
    from the slot's seed and the position.

    inverse_temperature, noise_scale, top_p, min_p: float32 [S]. top_k: int32 [S]. seeds: int64 [S].
    repetition_penalty, presence_penalty, frequency_penalty: float32 [S]; 1, 0 and 0 where off.
    counts: int32 [S, V]; bit 0 says that a token is in the prompt, the bits above it how often it came in the output.
        Lines of slots without penalties mean nothing.
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


class Linear(Protocol):
    """A weight made ready for its backend. Takes [T, in_features], gives [T, out_features]."""

    in_features: int
    out_features: int

    def __call__(self, x: Tensor) -> Tensor:
        """In the compute dtype."""
        ...

    def wide(self, x: Tensor) -> Tensor:
        """In float32: of logits. A backend may give more of the sums than its compute dtype holds."""
        ...


class Embedding(Protocol):
    """The table [V, H] made ready for its backend."""

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Rows [T, H] of tokens int64 [T], in the compute dtype."""
        ...


HeadNorms = weights.HeadNorms[Tensor]
LayerWeights = weights.LayerWeights[Tensor, Linear]
ModelWeights = weights.ModelWeights[Tensor, Linear, Embedding]
SamplingColumns = host.SamplingColumns[Tensor]
LogitEdits = host.LogitEdits[Tensor]
Penalties = host.Penalties[Tensor]


class Ops(weights.Packer[Tensor, Linear, Embedding], Protocol):
    """The ops of one device and dtype, on torch's tensors. Meanings, shapes and tolerances: `kernels.reference`."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def on_gpu(self) -> bool: ...

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> Linear: ...

    def embed(self, table: Tensor, token_ids: Tensor) -> Tensor: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...

    def silu_mul(self, gate_up: Tensor) -> Tensor: ...

    def allocate_kv(self, num_layers: int, num_blocks: int, num_kv_heads: int, head_dim: int) -> Tensor:
        """KV [L, N, 16, 2, Hkv, D], all finite."""
        ...

    def clear_blocks(self, kv: Tensor, block_ids: Tensor) -> None: ...

    def copy_blocks(self, kv: Tensor, sources: Tensor, targets: Tensor) -> None: ...

    def rotate_and_store(
        self, qkv: Tensor, norms: HeadNorms | None, rope: RopeRows, kv_layer: Tensor, slot_mapping: Tensor
    ) -> Tensor: ...

    def plan_attention(self, metadata: AttentionMetadata) -> "AttentionPlan": ...

    def attend(self, query: Tensor, kv_layer: Tensor, plan: "AttentionPlan", window: int | None) -> Tensor: ...

    def edit_logits(self, logits: Tensor, edits: LogitEdits) -> None: ...

    def mask_logits(self, logits: Tensor, bitmask: Tensor) -> None: ...

    def sample(self, logits: Tensor, columns: SamplingColumns) -> Tensor: ...

    def sample_among(self, logits: Tensor, token_ids: Tensor, columns: SamplingColumns) -> Tensor: ...

    def finite_rows(self, logits: Tensor) -> Tensor: ...

    def token_logprobs(self, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...


class AttentionPlan(Protocol):
    """What a backend works out once a step and uses in every layer.

    Positions and slots are as in the metadata; a token with a negative slot fills up a step and is stored nowhere.
    """

    @property
    def positions(self) -> Tensor: ...

    @property
    def slot_mapping(self) -> Tensor: ...
