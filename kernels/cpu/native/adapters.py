"""Adapters packed for the native library, and which of them a step's rows have. Definition: `kernels.adapters`."""

import ctypes
from collections.abc import Sequence

import numpy as np

from kernels.adapters import ADAPTED_PRODUCTS, NO_ADAPTER, AdaptedProduct, AdapterWeights, Parts
from kernels.arrays import FLOAT32, Array, Floats, Ints, address, aligned_bytes
from kernels.cpu.native import abi
from kernels.cpu.native.library import load
from kernels.cpu.native.linear import NativeLinear
from kernels.host import StepRows
from kernels.weights import LayerWeights, MlpWeights

NativeLayer = LayerWeights[Floats, NativeLinear]


def product_number(layer: int, product: AdaptedProduct) -> int:
    """The number of a layer's product among those of the model that adapters change."""
    return layer * len(ADAPTED_PRODUCTS) + ADAPTED_PRODUCTS.index(product)


class NativeAdapter:
    """An adapter packed in bf16 for the products of a model.

    rank: the most ranks of a product, filled up. bytes: of the packed memory. struct: the TpAdapter. Packing runs in
    the calling thread alone, while another may compute with the model.
    """

    def __init__(self, weights: AdapterWeights, layers: Sequence[NativeLayer]) -> None:
        assert len(weights.layers) == len(layers), f"an adapter of {len(weights.layers)} layers for {len(layers)}"
        changes = {
            product_number(index, product): _Change(layer, product, own.parts(product))
            for index, (layer, own) in enumerate(zip(layers, weights.layers, strict=True))
            for product in ADAPTED_PRODUCTS
            if own.parts(product)
        }
        self.bytes = sum(change.bytes for change in changes.values())
        self.rank = 0
        self._memory = aligned_bytes(self.bytes)
        self._changes = (ctypes.c_void_p * (len(layers) * len(ADAPTED_PRODUCTS)))()
        first = address(self._memory)
        for number, change in changes.items():
            self.rank = max(self.rank, change.pack(first))
            self._changes[number] = first
            first += change.bytes
        self.struct = abi.Adapter(ctypes.addressof(self._changes))


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


class _Change:
    """The parts of one product, to be packed."""

    def __init__(self, layer: NativeLayer, product: AdaptedProduct, parts: Parts) -> None:
        linear = _linear(layer, product)
        library = load()
        assert library is not None, "there is no native library"
        self._library = library
        self._linear, self._gated_pairs = linear, 0
        outputs = linear.out_features
        if product == "gate_up":
            assert isinstance(layer.mlp, MlpWeights)
            self._gated_pairs = layer.mlp.down.in_features
            outputs = 2 * self._gated_pairs
        self._held: list[Array] = []
        self._parts = (abi.LowRankPart * len(parts))()
        for struct, part in zip(self._parts, parts, strict=True):
            down, up = (np.ascontiguousarray(weight, FLOAT32) for weight in (part.down, part.up))
            assert down.shape == (part.rank, linear.in_features), f"down is {down.shape} of {product}"
            assert up.shape[1] == part.rank, f"up is {up.shape}, down {down.shape}"
            assert 0 <= part.first <= part.first + len(up) <= outputs, f"outputs from {part.first} of {outputs}"
            self._held += down, up
            struct.first, struct.outputs, struct.rank = part.first, len(up), part.rank
            struct.inputs, struct.down, struct.up = linear.in_features, address(down), address(up)
        self.bytes = int(library.tp_low_rank_bytes(*self._arguments()))

    def pack(self, packed_at: int) -> int:
        """Pack into `bytes` bytes of memory. Returns the ranks of all parts, filled up."""
        return int(self._library.tp_pack_low_rank(*self._arguments(), packed_at))

    def _arguments(self) -> tuple[object, ...]:
        return (ctypes.byref(self._linear.struct), self._gated_pairs, ctypes.byref(self._parts), len(self._parts))


def _linear(layer: NativeLayer, product: AdaptedProduct) -> NativeLinear:
    """The product of a layer that an adapter changes."""
    if product == "output":
        return layer.output
    if product == "qkv":
        assert layer.delta is None, "adapters change no delta nets"
        assert isinstance(layer.qkv, NativeLinear), "adapters change no latents"
        return layer.qkv
    assert isinstance(layer.mlp, MlpWeights), "adapters change no experts"
    return layer.mlp.gate_up if product == "gate_up" else layer.mlp.down
