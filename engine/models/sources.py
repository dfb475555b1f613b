"""Where the loader takes a model's weights from: any checkpoint format, or a model in memory.

Tensors carry Hugging Face's names and layouts (`model.layers.0.self_attn.q_proj.weight` of shape
[out_features, in_features], half-split rope).
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol, runtime_checkable

from engine.models.config import ModelConfig
from kernels.arrays import Array, Dtype
from kernels.weights import StoredWeight


class WeightSource(Protocol):
    """A model's weights, wherever they come from: all that loading it takes."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def weight_bytes(self) -> int:
        """Size of the weights as stored, in bytes: the total of a progress bar over `tensors`."""
        ...

    def tensors(self, dtype: Dtype) -> Iterator[tuple[str, Array]]:
        """Every weight once, in no particular order, in `dtype`. May be memory-mapped: do not write to it."""
        ...


@runtime_checkable
class BlockSource(Protocol):
    """A source that keeps matrices in blocks of few bits, and gives them as they are to who computes with them."""

    @property
    def block_formats(self) -> Mapping[str, str]:
        """The format, as `StoredWeight` names it, of each matrix in blocks."""
        ...

    def stored(self, names: Collection[str]) -> Iterator[tuple[str, StoredWeight]]:
        """These of the matrices in blocks. Memory-mapped, and soon read again: pack each before taking the next."""
        ...

    def tensors(self, dtype: Dtype, without: Collection[str] = frozenset()) -> Iterator[tuple[str, Array]]:
        """As a `WeightSource` does, without some of them."""
        ...
