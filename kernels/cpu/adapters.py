"""Adapters of a model that torch computes on a CPU.

Tokens are grouped by adapter; those without one cost nothing. A token's sum is computed in float32, by two products
whose rounding may depend on how many tokens share its adapter, as in the products of this backend.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.adapters import ADAPTED_PRODUCTS, NO_ADAPTER, AdaptedProduct, AdapterWeights, Parts
from kernels.arrays import FLOAT32, Ints


@dataclass(frozen=True, slots=True)
class _Up:
    """up [N, r] of a part, its first output, and its first line among the `down` of all parts."""

    weight: Tensor
    first: int
    line: int


@dataclass(frozen=True, slots=True)
class _PackedProduct:
    """The parts of a product: `down` of all, [ranks, K], and each `up`. In float32."""

    down: Tensor
    ups: tuple[_Up, ...]

    def added_to(self, y: Tensor, x: Tensor) -> Tensor:
        """y [T, N] plus what the adapter adds for x [T, K], in the dtype of y."""
        inner = x.float() @ self.down.T
        out = y.float()
        for up in self.ups:
            outputs, rank = up.weight.shape
            out[:, up.first : up.first + outputs] += inner[:, up.line : up.line + rank] @ up.weight.T
        return out.to(y.dtype)


@dataclass(frozen=True, slots=True)
class TorchAdapter:
    """An adapter packed for torch: of each layer, the products that it changes."""

    layers: Sequence[Mapping[AdaptedProduct, _PackedProduct]]

    @property
    def bytes(self) -> int:
        """Size of the numbers."""
        products = [product for layer in self.layers for product in layer.values()]
        return sum(each.down.nbytes + sum(up.weight.nbytes for up in each.ups) for each in products)


def pack(weights: AdapterWeights) -> TorchAdapter:
    """The weights in memory of their own."""
    return TorchAdapter(
        [
            {product: _packed(parts) for product in ADAPTED_PRODUCTS if (parts := layer.parts(product))}
            for layer in weights.layers
        ]
    )


class TorchAdapters:
    """The adapters of a step's tokens, a `StepAdapters`."""

    def __init__(self, adapters: Mapping[int, TorchAdapter], slots: Ints, query_lens: Ints) -> None:
        """`adapters`: by slot. `slots`: of each row, or NO_ADAPTER. `query_lens`: tokens of each row."""
        of_tokens = torch.from_numpy(slots.repeat(query_lens))
        used = set(slots.tolist()) - {NO_ADAPTER}
        self._groups = [(adapters[slot], (of_tokens == slot).nonzero().flatten()) for slot in sorted(used)]

    def add(self, layer: int, product: AdaptedProduct, y: Tensor, x: Tensor) -> Tensor:
        """See `engine.models.adapted_products.StepAdapters`."""
        for adapter, tokens in self._groups:
            packed = adapter.layers[layer].get(product)
            if packed is None:
                continue
            if len(tokens) == len(y):
                return packed.added_to(y, x)
            y[tokens] = packed.added_to(y[tokens], x[tokens])
        return y


def _packed(parts: Parts) -> _PackedProduct:
    downs, ups, line = [], [], 0
    for part in parts:
        down, up = (torch.from_numpy(weight.astype(FLOAT32)) for weight in (part.down, part.up))
        downs.append(down)
        ups.append(_Up(up, part.first, line))
        line += part.rank
    return _PackedProduct(torch.cat(downs), tuple(ups))
