"""Packs adapters for the native library. Needs the sizes of a model's products, and not its weights, so that another
process can do it. Definition: `kernels.adapters`."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernels.adapters import ADAPTED_PRODUCTS, AdaptedProduct, AdapterWeights, Parts
from kernels.arrays import FLOAT32, Array, Bytes, Floats, address
from kernels.cpu.native import abi
from kernels.cpu.native.library import load
from kernels.cpu.native.linear import NativeLinear
from kernels.weights import LayerWeights, MlpWeights

NativeLayer = LayerWeights[Floats, NativeLinear]


def product_number(layer: int, product: AdaptedProduct) -> int:
    """The number of a layer's product among those of the model that adapters change."""
    return layer * len(ADAPTED_PRODUCTS) + ADAPTED_PRODUCTS.index(product)


@dataclass(frozen=True, slots=True)
class ProductLayout:
    """The shape of a product that adapters are packed for. inputs: of the product; packed_inputs: filled up, as its
    weights are. outputs: of each of its weights. gated_pairs: pairs of gates and ups; 0: the outputs are no gates and
    ups."""

    inputs: int
    packed_inputs: int
    outputs: tuple[int, ...]
    gated_pairs: int


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """The products of each layer that adapters can change, without the weights: it can be sent to another process."""

    layers: tuple[Mapping[AdaptedProduct, ProductLayout], ...]


def model_layout(layers: Sequence[NativeLayer]) -> ModelLayout:
    """The layout of a model."""
    return ModelLayout(tuple(dict(_products_of(layer)) for layer in layers))


@dataclass(frozen=True, slots=True)
class PackedPlaces:
    """Where the changes of each product lie in the memory of a packed adapter, and the most ranks of one, filled up.

    offsets: in bytes, by the product's number (see `product_number`). bytes: of the memory.
    """

    bytes: int
    rank: int
    offsets: Mapping[int, int]


class AdapterPacking:
    """Packs an adapter in bf16. Runs in the calling thread alone, while another may compute with the model.

    bytes: of the memory that it needs.
    """

    def __init__(self, weights: AdapterWeights, layout: ModelLayout) -> None:
        assert len(weights.layers) == len(layout.layers), (
            f"an adapter of {len(weights.layers)} layers for {len(layout.layers)}"
        )
        self._changes = {
            product_number(index, product): _Change(products, product, own.parts(product))
            for index, (products, own) in enumerate(zip(layout.layers, weights.layers, strict=True))
            for product in ADAPTED_PRODUCTS
            if own.parts(product)
        }
        self.bytes = sum(change.bytes for change in self._changes.values())

    def pack(self, memory: Bytes) -> PackedPlaces:
        """Pack into uint8 [bytes]."""
        offsets, first, rank = {}, 0, 0
        for number, change in self._changes.items():
            rank = max(rank, change.pack(memory[first : first + change.bytes]))
            offsets[number] = first
            first += change.bytes
        return PackedPlaces(self.bytes, rank, offsets)


class _Change:
    """The parts of one product, to be packed."""

    def __init__(self, products: Mapping[AdaptedProduct, ProductLayout], product: AdaptedProduct, parts: Parts) -> None:
        assert product in products, f"adapters do not change {product} of this layer"
        layout = products[product]
        library = load()
        assert library is not None, "there is no native library"
        self._library = library
        self._linear, self._gated_pairs = _linear_of(layout), layout.gated_pairs
        outputs = 2 * layout.gated_pairs or sum(layout.outputs)
        self._held: list[Array] = []
        self._parts = (abi.LowRankPart * len(parts))()
        for struct, part in zip(self._parts, parts, strict=True):
            down, up = (np.ascontiguousarray(weight, FLOAT32) for weight in (part.down, part.up))
            assert down.shape == (part.rank, layout.inputs), f"down is {down.shape} of {product}"
            assert up.shape[1] == part.rank, f"up is {up.shape}, down {down.shape}"
            assert 0 <= part.first <= part.first + len(up) <= outputs, f"outputs from {part.first} of {outputs}"
            self._held += down, up
            struct.first, struct.outputs, struct.rank = part.first, len(up), part.rank
            struct.inputs, struct.down, struct.up = layout.inputs, address(down), address(up)
        self.bytes = int(library.tp_low_rank_bytes(*self._arguments()))

    def pack(self, memory: Bytes) -> int:
        """Pack into `bytes` bytes of memory. Returns the ranks of all parts, filled up."""
        assert len(memory) == self.bytes, f"{len(memory)} bytes for {self.bytes}"
        return int(self._library.tp_pack_low_rank(*self._arguments(), address(memory)))

    def _arguments(self) -> tuple[object, ...]:
        return (ctypes.byref(self._linear), self._gated_pairs, ctypes.byref(self._parts), len(self._parts))


def _products_of(layer: NativeLayer) -> Iterator[tuple[AdaptedProduct, ProductLayout]]:
    """No products of delta nets, latents and experts."""
    if layer.delta is None:
        if isinstance(layer.qkv, NativeLinear):
            yield "qkv", _layout_of(layer.qkv)
        yield "output", _layout_of(layer.output)
    if isinstance(layer.mlp, MlpWeights):
        yield "gate_up", _layout_of(layer.mlp.gate_up, gated_pairs=layer.mlp.down.in_features)
        yield "down", _layout_of(layer.mlp.down)


def _layout_of(linear: NativeLinear, gated_pairs: int = 0) -> ProductLayout:
    weights = linear.struct.part[: linear.struct.count]
    outputs = tuple(int(weight.outputs) for weight in weights)
    return ProductLayout(linear.in_features, int(weights[0].inputs), outputs, gated_pairs)


def _linear_of(layout: ProductLayout) -> abi.Linear:
    """A TpLinear without weights, which packing does not read."""
    linear = abi.Linear(count=len(layout.outputs))
    for index, outputs in enumerate(layout.outputs):
        linear.part[index] = abi.Weight(outputs=outputs, inputs=layout.packed_inputs)
    return linear
