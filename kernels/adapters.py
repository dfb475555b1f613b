"""Low-rank adapters of a model's products (LoRA, Hu et al., arXiv 2106.09685): y += scaling B A x.

A is `down` and scaling B is `up`. An adapter changes four products of a layer, the same that `LayerWeights` has; each
may consist of parts that add to different outputs, as `q_proj`, `k_proj` and `v_proj` do to one product.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from kernels.arrays import Array

AdaptedProduct = Literal["qkv", "output", "gate_up", "down"]
ADAPTED_PRODUCTS: tuple[AdaptedProduct, ...] = get_args(AdaptedProduct)

NO_ADAPTER = -1
"""The slot of a row without an adapter."""


@dataclass(frozen=True, slots=True)
class LowRankPart:
    """Adds `up @ (down @ x)` to the outputs [first, first + N) of a product.

    down: [r, K] of the product's K inputs. up: [N, r], with the scaling. Both in float32, finite. Of `gate_up`, the
    gates are the outputs [0, F) and the ups [F, 2F), wherever a backend keeps them.
    """

    down: Array
    up: Array
    first: int

    @property
    def rank(self) -> int:
        return int(self.down.shape[0])


Parts = tuple[LowRankPart, ...]


@dataclass(frozen=True, slots=True)
class LayerAdapter:
    """The parts of each product of a layer, with distinct outputs; empty: unchanged."""

    qkv: Parts = ()
    output: Parts = ()
    gate_up: Parts = ()
    down: Parts = ()

    def parts(self, product: AdaptedProduct) -> Parts:
        """The parts of one product."""
        found: Parts = getattr(self, product)
        return found


class PackedAdapter(Protocol):
    """An adapter in the format of the backend that packed it, on the host."""

    @property
    def bytes(self) -> int:
        """Size of its numbers."""
        ...


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """An adapter of a whole model: one entry a layer."""

    layers: Sequence[LayerAdapter]

    def all_parts(self) -> Iterator[LowRankPart]:
        """The parts of all layers."""
        for layer in self.layers:
            for product in ADAPTED_PRODUCTS:
                yield from layer.parts(product)

    @property
    def rank(self) -> int:
        """The largest rank of a part; 0 without parts."""
        return max((part.rank for part in self.all_parts()), default=0)

    @property
    def bytes(self) -> int:
        """Size of the numbers in all parts."""
        return sum(part.down.nbytes + part.up.nbytes for part in self.all_parts())

    @property
    def parameters(self) -> int:
        """Numbers in all parts."""
        return sum(part.down.size + part.up.size for part in self.all_parts())
