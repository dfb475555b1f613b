"""Random adapters of tiny models, and models with an adapter merged into their weights."""

from collections.abc import Collection, Sequence
from itertools import accumulate

import numpy as np
import torch

from engine.models.transformer import Transformer
from kernels.adapter_sizes import LayerSizes
from kernels.adapters import ADAPTED_PRODUCTS, AdaptedProduct, AdapterWeights, LayerAdapter, LowRankPart, Parts
from kernels.arrays import FLOAT32
from kernels.reference_ops import ReferenceLinear
from kernels.weights import MlpWeights


def random_adapter(
    layers: Sequence[LayerSizes],
    seed: int,
    rank: int = 4,
    products: Collection[AdaptedProduct] = ADAPTED_PRODUCTS,
) -> AdapterWeights:
    """An adapter that changes what a model computes clearly: q, k and v, gates and ups by parts of their own, the last
    of each with half the rank."""
    random = np.random.default_rng(seed)

    def parts(index: int, product: AdaptedProduct) -> Parts:
        size = layers[index].get(product)
        if size is None or product not in products:
            return ()
        edges = [0, *accumulate(size.parts)]
        ranks = [rank] * (len(edges) - 2) + [rank if len(edges) == 2 else max(1, rank // 2)]
        return tuple(
            LowRankPart(
                (random.standard_normal((part_rank, size.inputs)) / size.inputs**0.5).astype(FLOAT32),
                (random.standard_normal((end - first, part_rank)) / (2 * part_rank) ** 0.5).astype(FLOAT32),
                first,
            )
            for first, end, part_rank in zip(edges, edges[1:], ranks, strict=False)
        )

    return AdapterWeights(
        [LayerAdapter(*(parts(index, product) for product in ADAPTED_PRODUCTS)) for index in range(len(layers))]
    )


@torch.inference_mode()
def merge(model: Transformer, adapter: AdapterWeights) -> None:
    """Add an adapter to the weights of a model with plain products."""
    for layer, added in zip(model._weights.layers, adapter.layers, strict=True):
        mlp = layer.mlp if isinstance(layer.mlp, MlpWeights) else None
        linears = {"qkv": layer.qkv, "output": layer.output}
        if mlp is not None:
            linears |= {"gate_up": mlp.gate_up, "down": mlp.down}
        for product in ADAPTED_PRODUCTS:
            for part in added.parts(product):
                linear = linears[product]
                weight = linear.weight if isinstance(linear, ReferenceLinear) else linear._weight  # type: ignore[union-attr]
                low_rank = torch.from_numpy(part.up @ part.down).to(weight)
                weight[part.first : part.first + len(low_rank)] += low_rank
