"""Adapters of the CPU ops to torch's tensors, in which `kernels.reference` is defined."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from kernels.arrays import Array
from kernels.cpu.memory import WeightMemory
from kernels.cpu.native import NativeEmbedding, NativeLinear, NativeSampling, pack_gate_up
from kernels.exchange import array_of, tensor_of
from kernels.host import HostColumns, HostEdits, HostOps, HostPenalties, LogitEdits, Penalties, SamplingColumns
from kernels.weights import StoredWeight


def dense(rows: Tensor) -> StoredWeight:
    return StoredWeight.dense(array_of(rows))


def optional_array(bias: Tensor | None) -> Array | None:
    return None if bias is None else array_of(bias)


class LinearFace:
    """A `NativeLinear`."""

    def __init__(self, linear: NativeLinear) -> None:
        self.linear = linear
        self.in_features, self.out_features = linear.in_features, linear.out_features

    @classmethod
    def packed(cls, parts: Sequence[StoredWeight], bias: Tensor | None = None) -> "LinearFace":
        return cls(NativeLinear(parts, optional_array(bias), WeightMemory()))

    @classmethod
    def gate_up(cls, gate: StoredWeight, up: StoredWeight, bias: Tensor | None = None) -> "LinearFace":
        return cls(pack_gate_up(gate, up, optional_array(bias), WeightMemory()))

    def __call__(self, x: Tensor) -> Tensor:
        return tensor_of(self.linear(array_of(x)))

    def wide(self, x: Tensor) -> Tensor:
        return tensor_of(self.linear.wide(array_of(x)))

    def rows(self, indices: Sequence[int]) -> Tensor:
        return tensor_of(self.linear.rows(indices))


class EmbeddingFace:
    """A `NativeEmbedding`."""

    def __init__(self, weight: StoredWeight) -> None:
        self.embedding = NativeEmbedding(weight, WeightMemory())
        self.table = LinearFace(self.embedding.table)

    def __call__(self, token_ids: Tensor) -> Tensor:
        return tensor_of(self.embedding(array_of(token_ids)))


class ReadingFace:
    """Ops that read logits: all of a `HostOps`, or the `NativeSampling` in it."""

    def __init__(self, ops: HostOps | NativeSampling) -> None:
        self._ops = ops

    def sample(self, logits: Tensor, columns: SamplingColumns[Tensor]) -> Tensor:
        return tensor_of(self._ops.sample(array_of(logits), columns_in_arrays(columns)))

    def sample_among(self, logits: Tensor, token_ids: Tensor, columns: SamplingColumns[Tensor]) -> Tensor:
        return tensor_of(self._ops.sample_among(array_of(logits), array_of(token_ids), columns_in_arrays(columns)))

    def mask_logits(self, logits: Tensor, bitmask: Tensor) -> None:
        self._ops.mask_logits(array_of(logits), array_of(bitmask))

    def penalise(self, logits: Tensor, penalties: Penalties[Tensor], token_columns: Tensor | None = None) -> None:
        columns = None if token_columns is None else array_of(token_columns)
        self._ops.penalise(array_of(logits), penalties_in_arrays(penalties), columns)

    def finite_rows(self, logits: Tensor) -> Tensor:
        return tensor_of(self._ops.finite_rows(array_of(logits)))

    def token_logprobs(self, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normalisers, logprobs, ranks = self._ops.token_logprobs(array_of(logits), array_of(tokens))
        return tensor_of(normalisers), tensor_of(logprobs), tensor_of(ranks)


class HostFace(ReadingFace):
    """A `HostOps`."""

    def __init__(self, ops: HostOps) -> None:
        super().__init__(ops)
        self.ops = ops

    @property
    def dtype(self) -> torch.dtype:
        return tensor_of(np.empty(0, self.ops.dtype)).dtype

    def edit_logits(self, logits: Tensor, edits: LogitEdits[Tensor]) -> None:
        self.ops.edit_logits(array_of(logits), edits_in_arrays(edits))

    def clear_blocks(self, kv: Tensor, block_ids: Tensor) -> None:
        self.ops.clear_blocks(array_of(kv), array_of(block_ids))

    def copy_blocks(self, kv: Tensor, sources: Tensor, targets: Tensor) -> None:
        self.ops.copy_blocks(array_of(kv), array_of(sources), array_of(targets))

    def product(self, rows: Tensor, x: Tensor) -> Tensor:
        return tensor_of(self.ops.pack_rows(array_of(rows))(array_of(x)))


def columns_in_arrays(columns: SamplingColumns[Tensor]) -> HostColumns:
    return SamplingColumns(*(array_of(getattr(columns, field.name)) for field in fields(columns)))


def edits_in_arrays(edits: LogitEdits[Tensor]) -> HostEdits:
    return LogitEdits(*(array_of(getattr(edits, field.name)) for field in fields(edits)))


def penalties_in_arrays(penalties: Penalties[Tensor]) -> HostPenalties:
    return Penalties(*(array_of(getattr(penalties, field.name)) for field in fields(penalties)))
