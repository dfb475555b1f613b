"""A rank's part of a checkpoint: a source of weights whose tensors are cut as they are read."""

from collections.abc import Iterator

from engine.execution.parallel.shards import Place, cut_of, rank_config
from engine.models.config import ModelConfig
from engine.models.sources import WeightSource
from kernels.arrays import Array, Dtype


class ShardedSource:
    """A `WeightSource` of the part of one rank. Quantised matrices are expanded first, then cut."""

    def __init__(self, source: WeightSource, place: Place) -> None:
        """Raises:
        UnsupportedCheckpoint: the model cannot be cut so; the message names the field."""
        self._source, self._place = source, place
        self._config = rank_config(source.config, place)

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def weight_bytes(self) -> int:
        """Of the rank's share, about."""
        return max(1, self._source.weight_bytes // self._place.sizes.ranks)

    def tensors(self, dtype: Dtype) -> Iterator[tuple[str, Array]]:
        for name, tensor in self._source.tensors(dtype):
            part = cut_of(self._source.config, self._place, name, tensor.shape)
            if part is not None:
                yield part[0], part[1].of(tensor, self._place)
