"""Adapters packed for the native library, and which of them a step's rows have. Definition: `kernels.adapters`."""

import ctypes
from typing import Self

import numpy as np

from kernels.adapters import ADAPTED_PRODUCTS, NO_ADAPTER, AdapterWeights
from kernels.arrays import Bytes, Ints, address, aligned_bytes
from kernels.cpu.native import abi
from kernels.cpu.native.adapter_packing import AdapterPacking, ModelLayout, PackedPlaces
from kernels.host import StepRows


class NativeAdapter:
    """A packed adapter for the products of a model.

    rank: the most ranks of a product, filled up. bytes: of the packed memory. memory: uint8 [bytes]. struct: the
    TpAdapter.
    """

    def __init__(self, memory: Bytes, places: PackedPlaces, layers: int) -> None:
        """`memory`: uint8 [bytes], aligned to a cache line, filled by `AdapterPacking` for a model of `layers`."""
        assert len(memory) == places.bytes, f"{len(memory)} bytes for {places.bytes}"
        self.bytes, self.rank = places.bytes, places.rank
        self.memory = memory
        self._changes = (ctypes.c_void_p * (layers * len(ADAPTED_PRODUCTS)))()
        for number, offset in places.offsets.items():
            self._changes[number] = address(memory) + offset
        self.struct = abi.Adapter(ctypes.addressof(self._changes))

    @classmethod
    def pack(cls, weights: AdapterWeights, layout: ModelLayout) -> Self:
        """Packed into memory of its own."""
        packing = AdapterPacking(weights, layout)
        memory = aligned_bytes(packing.bytes)
        return cls(memory, packing.pack(memory), len(layout.layers))


class AdapterTable:
    """The adapters that a step may use, by slot."""

    def __init__(self, slots: int) -> None:
        self._adapters: list[NativeAdapter | None] = [None] * slots
        self._slots = (ctypes.c_void_p * slots)()
        self._struct = abi.Adapters(slots=slots, slot=ctypes.addressof(self._slots))

    def put(self, slot: int, adapter: NativeAdapter | None) -> None:
        """Fill a slot, or empty it. Not during a step."""
        assert 0 <= slot < len(self._adapters), f"slot {slot} of {len(self._adapters)}"
        self._adapters[slot] = adapter
        self._slots[slot] = None if adapter is None else ctypes.addressof(adapter.struct)

    def use(self, of_row: Ints) -> int | None:
        """Address of the TpAdapters of rows with the adapters int64 [R], which live as long as it is used; None if no
        row has one. Valid until the next call."""
        assert of_row.dtype == np.int64, f"slots in {of_row.dtype}"
        assert of_row.flags.c_contiguous, "slots that are not contiguous"
        ranks = []
        for slot in set(of_row.tolist()) - {NO_ADAPTER}:
            adapter = self._adapters[slot] if 0 <= slot < len(self._adapters) else None
            assert adapter is not None, f"there is no adapter in slot {slot}"
            ranks.append(adapter.rank)
        if not ranks:
            return None
        self._struct.rank, self._struct.of_row = max(ranks), address(of_row)
        return ctypes.addressof(self._struct)


def adapters_at(rows: StepRows, table: AdapterTable | None) -> int | None:
    """Address of the TpAdapters of a step's rows, as by `AdapterTable.use`."""
    if rows.adapters is None:
        return None
    assert len(rows.adapters) == len(rows.query_lens), f"{len(rows.adapters)} adapters of {len(rows.query_lens)} rows"
    assert table is not None, "the model has no adapters"
    return table.use(rows.adapters)
