"""The native library as an op table; computes without torch."""

from collections.abc import Sequence

import numpy as np

from kernels.arrays import BFLOAT16, FLOAT32, Array, Dtype, Flags, Floats, Ints, Words, bits_of
from kernels.cpu import native
from kernels.cpu.memory import WeightMemory, keep_freed_memory, lazy_zeros
from kernels.cpu.native import NativeEmbedding, NativeForward, NativeLinear, NativeSampling
from kernels.cpu.native.forward import NativeWeights
from kernels.cpu.native.staged import StagedForward, needs_stages
from kernels.cpu.penalties import edit_logits
from kernels.host import HostColumns, HostEdits, HostPenalties, HostProduct
from kernels.layout import BLOCK_TOKENS, MixedBlocks, block_numbers, int8_block_bytes, int8_layer_bytes
from kernels.weights import ModelShape, StoredWeight

_INT8 = np.dtype(np.int8)


def computes_natively() -> bool:
    """Whether the library is installed and has kernels for this processor."""
    level = native.level()
    return level is not None and level >= native.Level.AVX2


class NativeOps:
    """A `kernels.host.HostOps` and a `kernels.weights.Packer` in bfloat16.

    `int8_kv`: keep KV as defined by `kernels.reference_int8`.
    """

    on_gpu = False

    def __init__(self, threads: int, *, int8_kv: bool = False) -> None:
        level = native.level()
        assert level is not None, "there is no native library"
        native.start(threads)
        self._level, self._threads, self._int8_kv = level, threads, int8_kv
        self._sampling = NativeSampling()
        self._memory = WeightMemory()
        keep_freed_memory()

    @property
    def dtype(self) -> Dtype:
        return BFLOAT16

    def describe(self) -> dict[str, str | int | float]:
        return {
            "backend": "cpu",
            "dtype": self.dtype.name,
            "kv dtype": "int8" if self._int8_kv else self.dtype.name,
            "threads": self._threads,
            "products": "native",
            "level": self._level.name.lower(),
        }

    def takes_blocks(self, format: str, in_features: int) -> bool:
        return native.takes(format, in_features)

    def vector(self, numbers: Array) -> Floats:
        return numbers.astype(FLOAT32)

    def wide_vector(self, numbers: Array) -> Floats:
        return numbers.astype(FLOAT32)

    def pack_parts(self, parts: Sequence[StoredWeight], bias: Array | None) -> NativeLinear:
        return NativeLinear(parts, bias, self._memory)

    def pack_gate_up(self, gate: StoredWeight, up: StoredWeight, bias: Array | None) -> NativeLinear:
        return native.pack_gate_up(gate, up, bias, self._memory)

    def pack_embedding(self, weight: StoredWeight) -> NativeEmbedding:
        return NativeEmbedding(weight, self._memory)

    def tied_head(self, embedding: NativeEmbedding) -> NativeLinear:
        return embedding.table

    def pack_rows(self, rows: Array) -> HostProduct:
        return NativeLinear([StoredWeight.dense(rows)], None, self._memory).wide

    def forward_pass(self, shape: ModelShape, weights: NativeWeights) -> NativeForward | StagedForward:
        """The forward pass of a model: a step through all layers in one call, or in several for each layer."""
        return StagedForward(shape, weights) if needs_stages(shape, weights) else NativeForward(shape, weights)

    def allocate_kv(self, num_layers: int, num_blocks: int, num_kv_heads: int, head_dim: int) -> Array:
        """KV [L, N, 16, 2, Hkv, D], or int8 [L, N, bytes]."""
        if self._int8_kv:
            return lazy_zeros((num_layers, num_blocks, int8_block_bytes(num_kv_heads, head_dim)), _INT8)
        return lazy_zeros((num_layers, num_blocks, BLOCK_TOKENS, 2, num_kv_heads, head_dim), self.dtype)

    def allocate_mixed_kv(self, num_blocks: int, blocks: MixedBlocks) -> Array:
        """KV [1, N, numbers of a block], or int8 [1, N, bytes]."""
        if self._int8_kv:
            return lazy_zeros((1, num_blocks, blocks.starts(int8_layer_bytes)[1]), _INT8)
        return lazy_zeros((1, num_blocks, blocks.starts(block_numbers)[1]), self.dtype)

    def allocate_states(self, num_slots: int, num_layers: int, words: int) -> Floats:
        """float32 [slots, layers, words] of recurrent states."""
        return lazy_zeros((num_slots, num_layers, words), FLOAT32)

    def clear_blocks(self, kv: Array, block_ids: Ints) -> None:
        bits_of(kv)[:, block_ids] = 0

    def copy_blocks(self, kv: Array, sources: Ints, targets: Ints) -> None:
        bits = bits_of(kv)
        bits[:, targets] = bits[:, sources]

    def edit_logits(self, logits: Floats, edits: HostEdits) -> None:
        edit_logits(logits, edits)

    def penalise(self, logits: Floats, penalties: HostPenalties, token_columns: Words | None = None) -> None:
        self._sampling.penalise(logits, penalties, token_columns)

    def mask_logits(self, logits: Floats, bitmask: Words) -> None:
        self._sampling.mask_logits(logits, bitmask)

    def sample(self, logits: Floats, columns: HostColumns) -> Ints:
        return self._sampling.sample(logits, columns)

    def sample_among(self, logits: Floats, token_ids: Ints, columns: HostColumns) -> Ints:
        return self._sampling.sample_among(logits, token_ids, columns)

    def finite_rows(self, logits: Floats) -> Flags:
        return self._sampling.finite_rows(logits)

    def token_logprobs(self, logits: Floats, tokens: Ints) -> tuple[Floats, Floats, Ints]:
        return self._sampling.token_logprobs(logits, tokens)
