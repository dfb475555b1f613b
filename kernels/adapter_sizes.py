"""The sizes of the products that adapters can change, and the check of an adapter against them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kernels.adapters import ADAPTED_PRODUCTS, AdaptedProduct, AdapterWeights, Parts


class ProductSize(NamedTuple):
    """A product with a weight [outputs, inputs].

    parts: outputs of each projection that it consists of, in their order: those of q, k and v, or gates and ups.
    """

    parts: tuple[int, ...]
    inputs: int

    @property
    def outputs(self) -> int:
        return sum(self.parts)


LayerSizes = Mapping[AdaptedProduct, ProductSize]
"""The products of a layer that adapters can change."""


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
                weight = (size.outputs, size.inputs)
                raise ValueError(f"layer {index}: {product} has a weight {weight}, and the adapter {shapes}")


def _fit(parts: Parts, size: ProductSize) -> bool:
    end = 0
    for part in sorted(parts, key=lambda part: part.first):
        outputs, rank = part.up.shape
        if part.down.shape != (rank, size.inputs) or part.first < end:
            return False
        end = part.first + outputs
    return end <= size.outputs
