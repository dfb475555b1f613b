"""Weights packed for the native library, and products with them in any format: sums in float32, rounded once."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from kernels.arrays import BFLOAT16, FLOAT32, Array, Bytes, Dtype, Floats, Ints, address, aligned_bytes, bits_of
from kernels.cpu.memory import WeightMemory
from kernels.cpu.native import abi
from kernels.cpu.native.library import load
from kernels.cpu.native.w8a8 import with_rounded_inputs
from kernels.weights import DENSE, StoredWeight

PAIR = 16
"""Outputs of a gate block, followed by those of an up block: see TP_STORE_SILU_MUL."""

GATED = frozenset({abi.Store.SILU_MUL, abi.Store.GELU_MUL, abi.Store.CLAMPED_MUL})
"""Stores that multiply ups by a function of their gates."""


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of adapters to a product.

    rows_at: address of a TpRows with adapters, whose tokens are the product's rows. product: the number of the product,
    see `kernels.cpu.native.adapters.product_number`.
    """

    rows_at: int
    product: int


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
    """Concatenated weights, packed into memory of their own; the originals are not kept.

    Maps x [T, in] bf16, with contiguous rows at any stride, to bf16 or float32. `struct`: the TpLinear that describes
    it. A dense weight of odd width is padded with a column of zeros.
    """

    def __init__(self, parts: Sequence[StoredWeight], bias: Array | None, memory: WeightMemory) -> None:
        library = load()
        assert library is not None, "there is no native library"
        assert 0 < len(parts) <= abi.MOST_PARTS, f"{len(parts)} parts"
        self.in_features = parts[0].in_features
        self.out_features = sum(part.out_features for part in parts)
        self.dtype = BFLOAT16
        self._library = library
        self._bias = None if bias is None else np.array(bias, FLOAT32)
        self._packed: list[Bytes] = []
        self.struct = abi.Linear(count=len(parts))
        firsts = accumulate((part.out_features for part in parts), initial=0)
        for index, (part, first) in enumerate(zip(parts, firsts, strict=False)):
            assert part.in_features == self.in_features, f"{part.in_features} inputs after {self.in_features}"
            self.struct.part[index] = self._pack(with_rounded_inputs(part), first, memory)
        self._struct_at = ctypes.addressof(self.struct)
        self._columns = int(self.struct.part[0].inputs)

    def __call__(self, x: Array, change: Change | None = None) -> Array:
        return self._product(x, BFLOAT16, abi.Store.BF16, change)

    def wide(self, x: Array, change: Change | None = None) -> Floats:
        """float32 [T, out]: the unrounded sums."""
        return self._product(x, FLOAT32, abi.Store.FLOAT32, change)

    def gated(self, x: Array, store: abi.Store, change: Change | None = None) -> Array:
        """bf16 [T, out / 2] of a weight from `pack_gate_up`: one of `GATED` of its gates and ups."""
        assert store in GATED, f"{store.name} does not multiply"
        return self._product(x, BFLOAT16, store, change)

    def rows(self, indices: Sequence[int] | Ints) -> Floats:
        """float32 [n, in] of some outputs, as a product computes with them."""
        chosen: Ints = np.ascontiguousarray(indices, np.int64)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < self.out_features:
            raise IndexError(f"outputs {chosen.min()} to {chosen.max()} of {self.out_features}")
        numbers: Floats = np.empty((len(chosen), self._columns), FLOAT32)
        self._library.tp_unpack_rows(self._struct_at, address(chosen), len(chosen), address(numbers))
        return numbers[:, : self.in_features]

    def _pack(self, part: StoredWeight, first: int, memory: WeightMemory) -> abi.Weight:
        dense = part.rows.dtype != np.uint8
        number = abi.Format.BF16 if part.format == DENSE else abi.Format[part.format.upper()]
        rows, columns = part.rows, part.in_features
        if part.format == DENSE and columns % 2:
            rows, columns = widened(rows, columns + 1), columns + 1
        rows = np.ascontiguousarray(rows, BFLOAT16 if dense else np.uint8)
        size = self._library.tp_packed_bytes(number, part.out_features, columns)
        assert size >= 0, f"{part.format} cannot hold [{part.out_features}, {columns}]"
        packed = memory.take(size)
        self._library.tp_pack(number, address(rows), part.out_features, columns, address(packed))
        self._packed.append(packed)
        bias_at = None if self._bias is None else address(self._bias[first:])
        return abi.Weight(number, part.input_scale or 0.0, part.out_features, columns, address(packed), bias_at)

    def _product(self, x: Array, dtype: Dtype, store: abi.Store, change: Change | None) -> Array:
        assert x.dtype == self.dtype, f"x is {x.dtype}"
        assert x.shape[1] == self.in_features, f"x is {x.shape}, the weight takes {self.in_features}"
        if self._columns != self.in_features:
            x = widened(x, self._columns)
        elif x.strides[1] != x.itemsize:
            x = np.ascontiguousarray(x)
        count = x.shape[0]
        halves = 2 if store in GATED else 1
        y = np.empty((count, self.out_features // halves), dtype)
        stride = x.strides[0] // x.itemsize
        if change is not None:
            self._adapted_product(change, x, stride, store, y)
            return y
        size = self._library.tp_product_scratch_bytes(self._struct_at, count)
        scratch = aligned_bytes(size)
        self._library.tp_product(
            self._struct_at, address(x), stride, count, store, address(y), y.shape[1], address(scratch)
        )
        return y

    def _adapted_product(self, change: Change, x: Array, stride: int, store: abi.Store, y: Array) -> None:
        rows_at = change.rows_at
        tokens = abi.Rows.from_address(rows_at).tokens
        assert tokens == len(x), f"{len(x)} rows of {tokens} tokens"
        scratch = aligned_bytes(self._library.tp_adapted_product_scratch_bytes(self._struct_at, rows_at))
        self._library.tp_adapted_product(
            self._struct_at,
            rows_at,
            change.product,
            address(x),
            stride,
            store,
            address(y),
            y.shape[1],
            address(scratch),
        )


class NativeEmbedding:
    """A table [V, H] packed for products; rows are unpacked on lookup."""

    def __init__(self, weight: StoredWeight, memory: WeightMemory) -> None:
        self.table = NativeLinear([weight], None, memory)

    def __call__(self, token_ids: Ints) -> Array:
        return self.table.rows(token_ids).astype(BFLOAT16)


def pack_gate_up(gate: StoredWeight, up: StoredWeight, bias: Array | None, memory: WeightMemory) -> NativeLinear:
    """Blocks of 16 gates and 16 ups in turn, padded with rows of zeros, as TP_STORE_SILU_MUL and its neighbour need."""
    if gate.input_scale == up.input_scale:  # a block of 32 outputs rounds its inputs in one way
        rounded = with_rounded_inputs(gate), with_rounded_inputs(up)
        gate, up = rounded if rounded[0].format == rounded[1].format else (gate, up)
    if gate.format != up.format:  # a block of 32 outputs has one format
        gate, up = (_expanded(part) for part in (gate, up))
    rows = _in_turn(gate.rows, up.rows)
    if bias is not None:
        bias = _in_turn(*np.split(bias, 2))
    return NativeLinear([replace(gate, rows=rows, out_features=len(rows), rounded_inputs=False)], bias, memory)


def _in_turn(gate: Array, up: Array) -> Array:
    """[2F', ...] from two arrays [F, ...] of one dtype: 16 rows of each in turn, F' being the next multiple of 16."""
    dtype = gate.dtype
    filled = -(-len(gate) // PAIR) * PAIR
    gate, up = bits_of(gate), bits_of(up)
    turns = np.zeros((filled // PAIR, 2, PAIR, *gate.shape[1:]), gate.dtype)
    whole, rest = divmod(len(gate), PAIR)
    for place, part in enumerate((gate, up)):
        turns[:whole, place] = part[: whole * PAIR].reshape(whole, PAIR, *part.shape[1:])
        if rest:
            turns[whole, place, :rest] = part[whole * PAIR :]
    return turns.reshape(2 * filled, *gate.shape[1:]).view(dtype)


def widened(rows: Array, columns: int) -> Array:
    """The rows padded with columns of zeros."""
    wider = np.zeros((len(rows), columns), rows.dtype)
    wider[:, : rows.shape[1]] = rows
    return wider


def _expanded(part: StoredWeight) -> StoredWeight:
    """The same weight expanded to dense bf16."""
    if part.format == DENSE:
        return part
    packed = NativeLinear([part], None, WeightMemory())
    return StoredWeight.dense(packed.rows(range(part.out_features)).astype(BFLOAT16))
