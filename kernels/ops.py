"""The op table and the values that ops take: what a backend has to provide, with shapes.

Letters in shapes: T tokens of a step, R rows (requests) of a step, H hidden size, Hq and Hkv query and KV heads,
D head dimension, V vocabulary, N blocks of the pool, B blocks of a row.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where the tokens of a step stand in their sequences and in the KV pool.

    The tokens of row i are `query_lens[i]` consecutive rows of the step's tensors, rows one after another. Backends may
    be faster where rows of as many tokens are neighbours, and of these those of similar context. `context_lens[i]`
    counts the row's tokens up to and including this step's.

    positions: int64 [T], position of each token in its sequence.
    slot_mapping: int64 [T], where its KV goes: block id x 16 + offset.
    block_tables: int64 [R, B], the row's blocks in order; entries past its context are never read.

    Slots of a row's last block that lie past its context must hold finite numbers; blocks that belong to no row
    may hold anything.
    """

    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]


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


class Linear(Protocol):
    """A weight made ready for its backend. Takes [T, in_features], gives [T, out_features]."""

    in_features: int
    out_features: int

    def __call__(self, x: Tensor) -> Tensor: ...


class Ops(Protocol):
    """The ops of one device and dtype. Meanings, shapes and tolerances: `kernels.reference`."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def describe(self) -> dict[str, str | int | float]: ...

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> Linear: ...

    def embed(self, table: Tensor, token_ids: Tensor) -> Tensor: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...

    def silu_mul(self, gate_up: Tensor) -> Tensor: ...

    def allocate_kv(self, num_layers: int, num_blocks: int, num_kv_heads: int, head_dim: int) -> Tensor: ...

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
