"""The ranks of an engine, and its models on them."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine.checkpoints.checkpoint import Checkpoint
from engine.execution.parallel.parallel_model import ParallelModel
from engine.execution.parallel.rank_model import PartToLoad, RankModel
from engine.execution.parallel.rank_processes import RankProcesses
from engine.models.kv_groups import KVGroups
from engine.models.loader import Progress

if TYPE_CHECKING:
    from kernels.ops import Ops


class ModelOnRanks(NamedTuple):
    """A checkpoint to load: `weight_cache`, as in `open_checkpoint`; the groups of KV of all layers."""

    checkpoint: Checkpoint
    weight_cache: Path | None
    groups: KVGroups
    max_positions: int


def load_on_ranks(
    ranks: RankProcesses, model: ModelOnRanks, ops: "Ops", progress: Progress | None = None
) -> ParallelModel:
    """Load a model onto all ranks at once. `ops`: of rank 0.

    Raises:
        UnsupportedCheckpoint: the checkpoint cannot be served, or cut so.
        RankLost: a rank ended.
    """
    checkpoint, cache, groups = model.checkpoint, model.weight_cache, model.groups
    number = ranks.load(
        {
            "path": str(checkpoint.path),
            "weight_cache": None if cache is None else str(cache),
            "max_positions": model.max_positions,
            "windows": groups.windows,
            "kv_layers": groups.layers,
            "kv_places": groups.places,
        }
    )
    part = PartToLoad(checkpoint, ranks.place, groups, model.max_positions)
    loaded = RankModel.load(part, ops, ranks.collective(checkpoint.config.vocab_size), progress)
    ranks.await_ready()
    return ParallelModel(checkpoint.config, loaded, ranks, number, ops)
