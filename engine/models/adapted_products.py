"""The products of a layer that adapters change: their sizes, and a step's products with what its rows' adapters add."""

from dataclasses import dataclass

from torch import Tensor

from kernels.adapter_sizes import LayerSizes, ProductSize
from kernels.adapters import AdaptedProduct
from kernels.device_adapters import StepAdapters
from kernels.layout import HeadShape
from kernels.ops import LayerWeights, Linear
from kernels.weights import LatentWeights, MlpWeights


@dataclass(frozen=True, slots=True)
class LayerAdapters:
    """The adapters of a step's tokens in one layer."""

    adapters: StepAdapters
    layer: int


def multiply(linear: Linear, x: Tensor, product: AdaptedProduct, adapters: LayerAdapters | None) -> Tensor:
    """The product of x [T, K] in the compute dtype, [T, N], with what the adapters add."""
    y = linear(x)
    return y if adapters is None else adapters.adapters.add(adapters.layer, product, y, x)


def adapted_sizes(layer: LayerWeights, num_heads: int, heads: HeadShape | None) -> LayerSizes:
    """The products of a layer that adapters can change: not those of latents, delta nets' inputs and experts.
    `num_heads`: of queries. `heads`: of keys and values; None for a delta net."""
    sizes: dict[AdaptedProduct, ProductSize] = {}
    if heads is not None and not isinstance(layer.qkv, LatentWeights):
        query, of_keys = num_heads * heads.dim, heads.kv_heads * heads.dim
        further = (layer.qkv.out_features - query) // of_keys
        sizes["qkv"] = ProductSize((query, *[of_keys] * further), layer.qkv.in_features)
    sizes["output"] = _size(layer.output)
    if isinstance(layer.mlp, MlpWeights):
        gate_up = layer.mlp.gate_up
        sizes["gate_up"] = ProductSize((gate_up.out_features // 2,) * 2, gate_up.in_features)
        sizes["down"] = _size(layer.mlp.down)
    return sizes


def _size(linear: Linear) -> ProductSize:
    return ProductSize((linear.out_features,), linear.in_features)
