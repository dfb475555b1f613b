"""A rank's part of an adapter: of a product cut by rows, those of B; of one cut by columns, those of A."""

from collections.abc import Iterator, Sequence

import numpy as np

from engine.execution.parallel.shards import Place, cut_of, product_rows
from engine.models.config import ModelConfig
from engine.models.layout import Shape, fused_modules, layer_tensors
from kernels.adapter_sizes import LayerSizes, ProductSize
from kernels.adapters import (
    ADAPTED_PRODUCTS,
    AdaptedProduct,
    AdapterWeights,
    LayerAdapter,
    LowRankPart,
    Parts,
)
from kernels.arrays import Ints

_BY_ROWS: tuple[AdaptedProduct, ...] = ("qkv", "gate_up")


def adapted_products(config: ModelConfig, layer: int) -> dict[AdaptedProduct, list[tuple[str, Shape]]]:
    """The products of a layer that adapters can change: of each, the matrices that it computes, in order."""
    shapes = dict(layer_tensors(config, layer))
    modules = fused_modules(config, layer)
    groups: dict[AdaptedProduct, str] = {"qkv": "qkv", "output": "output", "gate_up": "mlp.gate_up", "down": "mlp.down"}
    products: dict[AdaptedProduct, list[tuple[str, Shape]]] = {}
    for product, group in groups.items():
        if group not in modules or (product == "qkv" and config.is_linear(layer)):
            continue
        names = [f"{module}.weight" for module in modules[group]]
        products[product] = [(f"model.layers.{layer}.{name}", shapes[name]) for name in names]
    return products


def adapted_sizes(config: ModelConfig) -> list[LayerSizes]:
    """Of each layer, the sizes of the products that adapters can change."""
    return [
        {
            product: ProductSize(tuple(shape[0] for _, shape in matrices), matrices[0][1][1])
            for product, matrices in adapted_products(config, layer).items()
        }
        for layer in range(config.num_layers)
    ]


def cut_adapter(weights: AdapterWeights, config: ModelConfig, place: Place) -> AdapterWeights:
    """The part of a rank, of an adapter that fits the whole model `config`."""
    return AdapterWeights(
        [_cut_layer(weights.layers[layer], config, place, layer) for layer in place.layers(config.num_layers)]
    )


def _cut_layer(adapter: LayerAdapter, config: ModelConfig, place: Place, layer: int) -> LayerAdapter:
    products = adapted_products(config, layer)
    return LayerAdapter(
        *(
            _cut_parts(adapter.parts(product), product, products.get(product, []), config, place)
            for product in ADAPTED_PRODUCTS
        )
    )


def _cut_parts(
    parts: Parts, product: AdaptedProduct, matrices: Sequence[tuple[str, Shape]], config: ModelConfig, place: Place
) -> Parts:
    if not parts:
        return ()
    if product in _BY_ROWS:
        return tuple(_of_rows(parts, product_rows(config, place, iter(matrices))))
    [(name, shape)] = matrices
    cut = cut_of(config, place, name, shape)
    assert cut is not None, f"{name} is of another stage"
    columns = cut[1].indices[1] if cut[1].indices else None
    if columns is None:
        return parts
    return tuple(LowRankPart(np.ascontiguousarray(part.down[:, columns]), part.up, part.first) for part in parts)


def _of_rows(parts: Parts, rows: Ints) -> Iterator[LowRankPart]:
    """The parts with those of their outputs that are among `rows`, ascending, of a product."""
    for part in parts:
        first, last = np.searchsorted(rows, (part.first, part.first + len(part.up)))
        if first < last:
            up = np.ascontiguousarray(part.up[rows[first:last] - part.first])
            yield LowRankPart(part.down, up, int(first))
