"""The ranks of a model as threads of one process, with the collectives of processes."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch._C._distributed_c10d import HashStore

from engine.execution.parallel.collectives import RankCollective
from engine.execution.parallel.rank_model import PartToLoad, RankModel
from engine.execution.parallel.rank_processes import rank_groups
from engine.execution.parallel.shards import ParallelSizes, Place, places, rank_config
from engine.models.host_model import HostModel
from engine.models.kv_groups import KVGroups, group_layers, one_group
from engine.models.loader import host_model, load_model
from engine.models.sources import WeightSource
from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import CpuProfile

T = TypeVar("T")

TIMEOUT_S = 20.0


class RankThreads:
    """The ranks of one model. `on_all` runs a call on each at once."""

    def __init__(self, source: WeightSource, sizes: ParallelSizes, *, windows: bool = False) -> None:
        self.places = places(sizes)
        self._pool = ThreadPoolExecutor(sizes.ranks)
        store = HashStore()
        groups = rank_groups_of(source, self.places[0], windows=windows)

        def load(place: Place) -> RankModel:
            ops = new_ops()
            world, stage = rank_groups(store, place, TIMEOUT_S)
            collective = RankCollective(place, world, stage, source.config.vocab_size)
            part = PartToLoad(source, place, groups, source.config.max_position)
            return RankModel.load(part, ops, collective)

        self.models: Sequence[RankModel] = list(self._pool.map(load, self.places))

    def on_all(self, call: Callable[[RankModel], T]) -> list[T]:
        """The results of all ranks."""
        return list(self._pool.map(call, self.models))

    def close(self) -> None:
        self._pool.shutdown()


def rank_groups_of(source: WeightSource, place: Place, *, windows: bool) -> KVGroups:
    """The groups of KV of all layers. `windows`: in several groups, where the model has windows."""
    config = source.config
    if not windows or config.linear is not None:
        return one_group(config.kv_layers)
    cut = rank_config(config, Place(ParallelSizes(place.sizes.tensor), 0))
    return group_layers(cut.kv_windows, config.max_position, cut.kv_heads)


def new_ops() -> CpuOps:
    """Torch's ops in float32."""
    return CpuOps(CpuProfile(torch.float32, threads=1, products="onednn", min_rows=1, probe_us={}))


def load_whole(source: WeightSource) -> HostModel:
    """The whole model in one process."""
    return host_model(load_model(source, new_ops(), source.config.max_position))
