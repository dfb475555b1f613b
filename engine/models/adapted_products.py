"""The products of a layer that adapters change: their sizes, and a step's products with what its rows' adapters add."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from kernels.adapters import ADAPTED_PRODUCTS, AdaptedProduct, AdapterWeights, Parts
from kernels.ops import LayerWeights, Linear
from kernels.weights import LatentWeights, MlpWeights


class ProductSize(NamedTuple):
    """The size of a product: a weight [outputs, inputs]."""

    outputs: int
    inputs: int


LayerSizes = Mapping[AdaptedProduct, ProductSize]
"""The products of a layer that adapters can change."""


class StepAdapters(Protocol):
    """The adapters of a step's tokens, on the model's device."""

    def add(self, layer: int, product: AdaptedProduct, y: Tensor, x: Tensor) -> Tensor:
        """y [T, N], the product of x [T, K], plus what the adapters add; y may be overwritten. See
        `kernels.reference_adapters`."""
        ...


@dataclass(frozen=True, slots=True)
class LayerAdapters:
    """The adapters of a step's tokens in one layer."""

    adapters: StepAdapters
    layer: int


def multiply(linear: Linear, x: Tensor, product: AdaptedProduct, adapters: LayerAdapters | None) -> Tensor:
    """The product of x [T, K] in the compute dtype, [T, N], with what the adapters add."""
    y = linear(x)
    return y if adapters is None else adapters.adapters.add(adapters.layer, product, y, x)


def adapted_sizes(layer: LayerWeights) -> LayerSizes:
    """The products of a layer that adapters can change: not those of latents, delta nets' inputs and experts."""
    sizes: dict[AdaptedProduct, ProductSize] = {}
    if layer.delta is None and not isinstance(layer.qkv, LatentWeights):
        sizes["qkv"] = _size(layer.qkv)
    sizes["output"] = _size(layer.output)
    if isinstance(layer.mlp, MlpWeights):
        sizes["gate_up"], sizes["down"] = _size(layer.mlp.gate_up), _size(layer.mlp.down)
    return sizes


def check_adapter(weights: AdapterWeights, layers: Sequence[LayerSizes]) -> None:
    """Raises:
    ValueError: the adapter does not fit a model with these layers."""
    if len(weights.layers) != len(layers):
        raise ValueError(f"an adapter of {len(weights.layers)} layers, and the model has {len(layers)}")
    for index, (layer, sizes) in enumerate(zip(weights.layers, layers, strict=True)):
        for product in ADAPTED_PRODUCTS:
            parts, size = layer.parts(product), sizes.get(product)
            if parts and size is None:
                raise ValueError(f"layer {index}: the model has no {product} product that adapters can change")
            if size is not None and not _fit(parts, size):
                shapes = [(part.down.shape, part.up.shape, part.first) for part in parts]
                raise ValueError(f"layer {index}: {product} has {size}, and the adapter {shapes}")


def _fit(parts: Parts, size: ProductSize) -> bool:
    end = 0
    for part in sorted(parts, key=lambda part: part.first):
        outputs, rank = part.up.shape
        if part.down.shape != (rank, size.inputs) or part.first < end:
            return False
        end = part.first + outputs
    return end <= size.outputs


def _size(linear: Linear) -> ProductSize:
    return ProductSize(linear.out_features, linear.in_features)
