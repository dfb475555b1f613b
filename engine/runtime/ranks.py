"""The ranks of an engine: how many, and what refuses them."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import EngineConfig
from engine.execution.parallel.shards import ParallelSizes
from engine.execution.parallel.sizing import model_bytes, tensor_size
from engine.runtime.available_memory import available_bytes
from kernels.cpu.cores import usable_cores
from kernels.dispatch import DeviceUnavailable, gpu_memory_bytes, takes_gpu

if TYPE_CHECKING:
    from engine.execution.parallel.rank_processes import RankProcesses

logger = logging.getLogger(__name__)


def parallel_sizes(models: Mapping[str, Path | str], config: EngineConfig) -> ParallelSizes:
    """The ranks that the config states. With "auto", the arithmetic is logged.

    Raises:
        DeviceUnavailable: the device, or a format that the config states, is not for several ranks.
        InsufficientMemory: "auto", and the devices' memory does not hold the models.
    """
    tensor = config.tensor_parallel
    if tensor == "auto":
        tensor = _automatic_size(models, config)
    sizes = ParallelSizes(tensor, config.pipeline_parallel)
    if sizes.ranks == 1:
        return sizes
    stated = f"tensor_parallel {sizes.tensor}, pipeline_parallel {sizes.stages}"
    if takes_gpu(config.device):
        raise DeviceUnavailable(f"{stated}: a GPU's models are computed by one process; use 1 of both, or device cpu")
    if config.kv_dtype != "auto":
        raise DeviceUnavailable(f"{stated}: ranks keep KV in the compute dtype; use kv_dtype auto")
    if config.quantize != "none":
        raise DeviceUnavailable(f"{stated}: ranks compute with plain weights; use quantize none")
    return sizes


def _automatic_size(models: Mapping[str, Path | str], config: EngineConfig) -> int:
    """All CPUs are one device: ranks on one machine share its memory."""
    drafts = set(config.drafts.values())
    gpu_bytes = gpu_memory_bytes(config.device)
    needs = []
    for name, path in models.items():
        checkpoint = open_checkpoint(Path(path), config.weight_cache)
        longest = checkpoint.config.max_position
        window = min(config.max_model_len or longest, longest)
        if name not in drafts:
            needs.append(model_bytes(name, checkpoint, window, 4 if config.dtype == "float32" else 2))
    devices = [available_bytes()] if gpu_bytes is None else [gpu_bytes]
    return tensor_size(needs, devices, logger.info)


def threads_of_rank(config: EngineConfig, sizes: ParallelSizes) -> int | None:
    """Threads of each rank: the cores, divided among them, unless stated. None: the probe's choice."""
    if config.threads is not None or sizes.ranks == 1:
        return config.threads
    return max(1, usable_cores() // sizes.ranks)


def start_ranks(
    sizes: ParallelSizes, backend: Mapping[str, str | int | float], config: EngineConfig
) -> "RankProcesses | None":
    """Start the processes of the ranks after the first; None if there are none. `backend`: rank 0's op table.

    Raises:
        RankLost: one ended.
    """
    if sizes.ranks == 1:
        return None
    from engine.execution.parallel.rank_processes import RankProcesses  # imports torch

    return RankProcesses(sizes, backend, config.collective_timeout_seconds)
