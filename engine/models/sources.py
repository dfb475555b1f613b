"""Sources of a model's weights: any checkpoint format, or a model in memory.

Tensors have Hugging Face's names and layouts (`model.layers.0.self_attn.q_proj.weight` of shape [out_features,
in_features], half-split rope).
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol, runtime_checkable

from engine.models.config import ModelConfig
from kernels.arrays import Array, Dtype
from kernels.weights import StoredWeight


class WeightSource(Protocol):
    """A model's weights and config: all that loading needs."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def weight_bytes(self) -> int:
        """Size of the stored weights in bytes: the total of a progress bar over `tensors`."""
        ...

    def tensors(self, dtype: Dtype) -> Iterator[tuple[str, Array]]:
        """Every weight once, in no particular order, in `dtype`. May be memory-mapped: do not write to it."""
        ...


@runtime_checkable
class BlockSource(Protocol):
    """A source with matrices in quantised block formats, which backends that compute with these can take
    unconverted."""

    @property
    def block_formats(self) -> Mapping[str, str]:
        """The format, as in `StoredWeight`, of each matrix in blocks."""
        ...

    def stored(self, names: Collection[str]) -> Iterator[tuple[str, StoredWeight]]:
        """The named matrices in blocks. Memory-mapped, with pages released soon: pack each before taking the next."""
        ...

    def tensors(self, dtype: Dtype, without: Collection[str] = frozenset()) -> Iterator[tuple[str, Array]]:
        """Like `WeightSource.tensors`, except for `without`."""
        ...
