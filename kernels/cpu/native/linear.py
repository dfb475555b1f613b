"""Weights in the native library's layouts, and products with them: any format, sums in float32, rounded once."""

import ctypes
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.memory import WeightMemory
from kernels.cpu.native import abi
from kernels.cpu.native.library import load
from kernels.ops import DENSE, Linear, StoredWeight

PAIR = 16
"""Gates that come before their ups: see TP_STORE_SILU_MUL."""


def takes(format: str, in_features: int) -> bool:
    """Whether there is a native product for weights of that format and width."""
    library = load()
    if library is None:
        return False
    if format == DENSE:
        return True
    number = abi.Format.__members__.get(format.upper())
    return number is not None and library.tp_packed_bytes(number, 1, in_features) >= 0


class NativeLinear:
    """Weights one below the other, packed into memory of their own; the originals are not kept.

    Takes x [T, in] bf16 whose rows lie anywhere, each contiguous; gives bf16 or float32. `struct` is the TpLinear that
    says where all of it lies. A dense weight of an odd width has a column of zeros behind it there.
    """

    def __init__(self, parts: Sequence[StoredWeight], bias: Tensor | None, memory: WeightMemory) -> None:
        library = load()
        assert library is not None, "there is no native library"
        assert 0 < len(parts) <= abi.MOST_PARTS, f"{len(parts)} parts"
        self.in_features = parts[0].in_features
        self.out_features = sum(part.out_features for part in parts)
        self.dtype = torch.bfloat16
        self._library = library
        self._bias = None if bias is None else bias.float().contiguous()
        self._packed: list[Tensor] = []
        self.struct = abi.Linear(count=len(parts))
        firsts = accumulate((part.out_features for part in parts), initial=0)
        for index, (part, first) in enumerate(zip(parts, firsts, strict=False)):
            assert part.in_features == self.in_features, f"{part.in_features} inputs beside {self.in_features}"
            self.struct.part[index] = self._pack(part, first, memory)
        self._struct_at = ctypes.addressof(self.struct)
        self._columns = int(self.struct.part[0].inputs)

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, torch.bfloat16, abi.Store.BF16)

    def wide(self, x: Tensor) -> Tensor:
        """float32 [T, out]: the sums, not rounded."""
        return self._product(x, torch.float32, abi.Store.FLOAT32)

    def rows(self, indices: Sequence[int]) -> Tensor:
        """float32 [n, in] of some outputs: what a product computes with."""
        numbers = torch.empty((len(indices), self._columns), dtype=torch.float32)
        unpack, row_at, row_bytes = self._library.tp_unpack_row, numbers.data_ptr(), 4 * self._columns
        for index in indices:
            part, first = self._part_of(index)
            unpack(part.format, part.packed, part.outputs, part.inputs, index - first, row_at)
            row_at += row_bytes
        return numbers[:, : self.in_features]

    def _pack(self, part: StoredWeight, first: int, memory: WeightMemory) -> abi.Weight:
        dense = part.rows.dtype != torch.uint8
        number = abi.Format.BF16 if part.format == DENSE else abi.Format[part.format.upper()]
        rows, columns = part.rows, part.in_features
        if part.format == DENSE and columns % 2:
            rows, columns = functional.pad(rows, (0, 1)), columns + 1
        if dense:
            rows = rows.to(torch.bfloat16)
        rows = rows.contiguous()
        size = self._library.tp_packed_bytes(number, part.out_features, columns)
        assert size >= 0, f"{part.format} cannot hold [{part.out_features}, {columns}]"
        packed = memory.take(size)
        self._library.tp_pack(number, rows.data_ptr(), part.out_features, columns, packed.data_ptr())
        self._packed.append(packed)
        bias_at = None if self._bias is None else self._bias[first:].data_ptr()
        return abi.Weight(number, 0, part.out_features, columns, packed.data_ptr(), bias_at)

    def _product(self, x: Tensor, dtype: torch.dtype, store: abi.Store) -> Tensor:
        assert x.dtype == self.dtype, f"x is {x.dtype}"
        assert x.shape[1] == self.in_features, f"x is {tuple(x.shape)}, the weight takes {self.in_features}"
        if self._columns != self.in_features:
            x = functional.pad(x, (0, self._columns - self.in_features))
        elif x.stride(1) != 1:
            x = x.contiguous()
        count = x.shape[0]
        y = torch.empty((count, self.out_features), dtype=dtype)
        size = self._library.tp_product_scratch_bytes(self._struct_at, count)
        scratch = torch.empty(size, dtype=torch.uint8)
        self._library.tp_product(
            self._struct_at, x.data_ptr(), x.stride(0), count, store, y.data_ptr(), y.stride(0), scratch.data_ptr()
        )
        return y

    def _part_of(self, output: int) -> tuple[abi.Weight, int]:
        first = 0
        for number in range(self.struct.count):
            part = self.struct.part[number]
            if first <= output < first + part.outputs:
                return part, first
            first += part.outputs
        raise IndexError(f"output {output} of {self.out_features}")


class NativeEmbedding:
    """A table [V, H] packed as a product with it wants it: rows are unpacked where they are looked up."""

    def __init__(self, weight: StoredWeight, memory: WeightMemory) -> None:
        self.table = NativeLinear([weight], None, memory)

    def __call__(self, token_ids: Tensor) -> Tensor:
        return self.table.rows(token_ids.tolist()).to(torch.bfloat16)

    def head(self) -> Linear:
        return self.table


def pack_gate_up(gate: StoredWeight, up: StoredWeight, bias: Tensor | None, memory: WeightMemory) -> NativeLinear:
    """Gates and ups in turn, 16 of each, filled up with rows of zeros: what TP_STORE_SILU_MUL takes."""
    if gate.format != up.format:  # a block of 32 outputs has one format
        gate, up = (_expanded(part) for part in (gate, up))
    rows = _in_turn(gate.rows, up.rows)
    if bias is not None:
        bias = _in_turn(*bias.chunk(2))
    return NativeLinear([StoredWeight(gate.format, rows, len(rows), gate.in_features)], bias, memory)


def _in_turn(gate: Tensor, up: Tensor) -> Tensor:
    """[2F', ...] of two [F, ...]: 16 of each in turn, F' the next multiple of 16."""
    missing = -len(gate) % PAIR
    if missing:
        zeros = gate.new_zeros((missing, *gate.shape[1:]))
        gate, up = torch.cat((gate, zeros)), torch.cat((up, zeros))
    shape = (-1, 1, PAIR, *gate.shape[1:])
    return torch.cat((gate.reshape(shape), up.reshape(shape)), dim=1).flatten(0, 2)


def _expanded(part: StoredWeight) -> StoredWeight:
    """The same numbers, dense, rounded to bf16."""
    if part.format == DENSE:
        return part
    packed = NativeLinear([part], None, WeightMemory())
    return StoredWeight.dense(packed.rows(range(part.out_features)).to(torch.bfloat16))
