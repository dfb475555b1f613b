"""Sources of a model's weights: any checkpoint format, or a model in memory.

Tensors have Hugging Face's names and layouts (`model.layers.0.self_attn.q_proj.weight` of shape [out_features,
in_features], half-split rope).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from engine.models.config import ModelConfig
from kernels.arrays import Array, Dtype
from kernels.weights import KVScales, StoredWeight


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


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """How a matrix is stored. description: of its format, for operators. block_format: the format of `stored`, as in
    `StoredWeight`; None if there is none, and the matrix is passed as numbers. bytes: its size in the checkpoint."""

    description: str
    block_format: str | None
    bytes: int


@runtime_checkable
class KVScaleSource(Protocol):
    """A source with scales of KV in 8-bit floats."""

    @property
    def kv_scales(self) -> Mapping[int, KVScales]:
        """Scales of layers by their index. Layers without any are not in it."""
        ...


@runtime_checkable
class BlockSource(Protocol):
    """A source with matrices in quantised block formats, which backends that compute with these can take
    unconverted."""

    @property
    def quantized(self) -> Mapping[str, QuantizedMatrix]:
        """The quantised matrices by name."""
        ...

    def stored(self, names: Collection[str]) -> Iterator[tuple[str, StoredWeight]]:
        """The named matrices, each of which has a block format. Memory-mapped, with pages released soon: pack each
        before taking the next."""
        ...

    def tensors(self, dtype: Dtype, without: Collection[str] = frozenset()) -> Iterator[tuple[str, Array]]:
        """Like `WeightSource.tensors`, except for `without`."""
        ...
