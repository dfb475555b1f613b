"""The op table and the values that ops take: what a backend has to provide, with shapes.

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
class HeadNorms:
    """RMS norms of each query head and each key head before they are rotated: weights [D]."""

    query: Tensor
    key: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class KVScales:
    """How KV is kept in fp8 e4m3: what is stored is the key or value divided by its scale, one for all layers."""

    key: float
    value: float


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Sparse changes to a step's logits, as coordinate lists. Empty lists change nothing.

    `repeat_*`: each (row, token) once; a positive logit is divided by the penalty, a negative one multiplied (CTRL,
    arXiv 1909.05858). `add_*`: then added; a (row, token) may come several times; -inf forbids the token.
    Rows and tokens are int64 [E], penalties and values float32 [E].
    """

    repeat_rows: Tensor
    repeat_tokens: Tensor
    repeat_penalties: Tensor
    add_rows: Tensor
    add_tokens: Tensor
    add_values: Tensor


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """How each row of a step is sampled: one column a parameter, neutral where a request does not use it.

    inverse_temperature: float32 [R]; 1 for greedy rows.
    noise_scale: float32 [R]; 0 for greedy rows, else 1.
    top_k: int64 [R]; V where off. top_p: float32 [R]; 1 where off. min_p: float32 [R]; 0 where off.
    keys: int64 [R, 2]; two 32-bit words drawn from (seed, position), see `kernels.noise`.
    """

    inverse_temperature: Tensor
    noise_scale: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    keys: Tensor


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


DENSE = "dense"
"""Numbers as they are, in the compute dtype: the format of a stored weight that every backend takes."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight [out_features, in_features] on its way from a checkpoint to a backend.

    format: "dense", with `rows` [out_features, in_features] in the compute dtype; or "int8" or "int4", with the same
        rows, which the backend is to keep in so many bits; or a GGUF block format by its lower-case name ("q4_0",
        "q6_k", ...), with `rows` uint8 [out_features, row bytes], the blocks as they are stored.
    """

    format: str
    rows: Tensor
    out_features: int
    in_features: int

    @classmethod
    def dense(cls, rows: Tensor) -> "StoredWeight":
        out_features, in_features = rows.shape
        return cls(DENSE, rows, out_features, in_features)


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

    def head(self) -> Linear:
        """The product with the table, where a model's head is tied to it. The two may share memory."""
        ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. `qkv` is q, k and v one below the other; `gate_up` is what `Ops.pack_gate_up` makes of the two."""

    attention_norm: Tensor
    qkv: Linear
    head_norms: HeadNorms | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """A model, ready for its backend. `head` gives logits [T, V]."""

    embedding: Embedding
    layers: Sequence[LayerWeights]
    final_norm: Tensor
    head: Linear


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a forward pass has to know beside the weights.

    windows: of each layer, how many tokens one sees, itself among them; None for all before it.
    cos, sin: float32 [positions, D'/2], rotary factors of every position; D' of D dimensions are rotated.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    windows: tuple[int | None, ...]
    cos: Tensor
    sin: Tensor


class ForwardPass(Protocol):
    """A step through all layers in one call of a backend."""

    def __call__(self, token_ids: Tensor, plan: "AttentionPlan", kv: Tensor, wanted: Counts | None = None) -> Tensor:
        """Hidden states [T, H] of a step's tokens int64 [T], normed for the head, in the compute dtype. Writes their
        KV into kv, as the backend allocated it, of which it reads no slot past a row's context.

        `wanted`, int64 [W], ascending: of these tokens alone, [W, H]. Of each row they are the last, and at least one.
        """
        ...


class Ops(Protocol):
    """The ops of one device and dtype. Meanings, shapes and tolerances: `kernels.reference`."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def describe(self) -> dict[str, str | int | float]: ...

    def takes_blocks(self, format: str, in_features: int) -> bool:
        """Whether weights of that format and width can be packed as they are. Where not, they come dense."""
        ...

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> Linear: ...

    def pack_parts(self, parts: Sequence[StoredWeight], bias: Tensor | None) -> Linear:
        """At most three weights, one below the other, each of a format that is taken."""
        ...

    def pack_gate_up(self, gate: StoredWeight, up: StoredWeight, bias: Tensor | None) -> Linear:
        """Gate and up of a feed-forward for `silu_mul`, or for the backend's forward pass alone. `bias` is that of
        the gates, then that of the ups."""
        ...

    def pack_embedding(self, weight: StoredWeight) -> Embedding: ...

    def forward_pass(self, shape: ModelShape, weights: ModelWeights) -> ForwardPass | None:
        """The way through these weights in one call. None: layer by layer with the ops of this table."""
        ...

    def embed(self, table: Tensor, token_ids: Tensor) -> Tensor: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...

    def silu_mul(self, gate_up: Tensor) -> Tensor: ...

    def allocate_kv(self, num_layers: int, num_blocks: int, num_kv_heads: int, head_dim: int) -> Tensor:
        """KV [L, N, 16, 2, Hkv, D], or [L, N, bytes] where the backend keeps a block in another way. All finite."""
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
