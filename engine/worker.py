"""Makes a model ready to serve: opens its checkpoint, loads its weights, sizes its KV pool, warms it up."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.config import BLOCK_TOKENS, EngineConfig
from engine.execution.runner import ModelRunner
from engine.memory.block_pool import BlockPool
from engine.memory.kv_cache import KVCacheManager
from engine.models.checkpoint import open_checkpoint
from engine.models.config import ModelConfig
from engine.models.loader import load_model
from engine.models.version import checkpoint_version
from engine.request import Request, SamplingParams
from engine.scheduling.scheduler import Scheduler
from engine.text.processor import TextProcessor
from kernels.ops import Ops

LoadProgress = Callable[[str, int, int], None]
"""Called with (model name, bytes of weights ready, bytes in all)."""

_MEMORY_SHARE = 0.25
_MAX_DEFAULT_KV_BYTES = 4 * 2**30
_WARM_UP_PROMPT_TOKENS = 24


class InsufficientMemory(RuntimeError):
    """The KV memory asked for cannot hold a useful number of tokens; the message has the arithmetic."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model as callers see it. `max_model_len` bounds prompt and answer together, in tokens.

    `windows` has the same bound for each class of service by name: a class has less where KV memory is reserved above
    it and the pool is small. `version` names the checkpoint's content.
    """

    name: str
    text: TextProcessor
    max_model_len: int
    windows: Mapping[str, int]
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    created: int
    version: str


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with all that steps it."""

    served: ServedModel
    scheduler: Scheduler
    runner: ModelRunner


def load(
    name: str, path: Path, ops: Ops, config: EngineConfig, share: float, progress: LoadProgress | None
) -> LoadedModel:
    """Load one model; `share` of the default KV memory is its.

    Raises:
        UnsupportedCheckpoint: the checkpoint cannot be served.
        InsufficientMemory: the KV memory holds less than two blocks.
    """
    checkpoint = open_checkpoint(path, config.weight_cache)
    model_config = checkpoint.config
    block_bytes = kv_block_bytes(model_config, ops.dtype.itemsize)
    window = min(config.max_model_len or model_config.max_position, model_config.max_position)
    num_blocks = _num_blocks(config, block_bytes, window, share)
    text = checkpoint.text_processor()
    report = None if progress is None else lambda done, total: progress(name, done, total)
    model = load_model(checkpoint, ops, window, report)
    cache = KVCacheManager(BlockPool(num_blocks), prefix_cache=config.prefix_cache)
    scheduler = Scheduler(config.scheduler, cache, window)
    runner = ModelRunner(
        model, num_blocks=num_blocks, num_slots=config.scheduler.max_running, max_model_len=scheduler.window_tokens
    )
    _warm_up(runner, num_blocks, config, scheduler.window_tokens)
    served = ServedModel(
        name,
        text,
        scheduler.window_tokens,
        {each.name: scheduler.window_tokens_of(each.name) for each in config.scheduler.classes},
        model_config.vocab_size,
        tuple(dict.fromkeys((*model_config.eos_token_ids, *text.tokenizer.eos_token_ids))),
        int(time.time()),
        checkpoint_version(path),
    )
    return LoadedModel(served, scheduler, runner)


def kv_block_bytes(config: ModelConfig, element_bytes: int) -> int:
    """Bytes of KV in one block: K and V of 16 tokens in every layer."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * element_bytes * BLOCK_TOKENS


def _num_blocks(config: EngineConfig, block_bytes: int, window: int, share: float) -> int:
    """Blocks that the KV memory holds, and no more than full windows in every slot would use."""
    kv_bytes = config.kv_cache_bytes or int(min(_available_bytes() * _MEMORY_SHARE, _MAX_DEFAULT_KV_BYTES) * share)
    useful = config.scheduler.max_running * -(-window // BLOCK_TOKENS)
    num_blocks = min(kv_bytes // block_bytes, useful)
    if num_blocks < 2:
        raise InsufficientMemory(
            f"{kv_bytes} bytes of KV memory hold {num_blocks} blocks of {block_bytes} bytes "
            f"({BLOCK_TOKENS} tokens each); at least 2 are needed"
        )
    return num_blocks


def _available_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _warm_up(runner: ModelRunner, num_blocks: int, config: EngineConfig, window: int) -> None:
    """Run one short request through a scheduler of its own, so that the first customer pays for no first times."""
    scheduler = Scheduler(config.scheduler, KVCacheManager(BlockPool(num_blocks)), window)
    prompt = [0] * max(1, min(_WARM_UP_PROMPT_TOKENS, window - 2))
    scheduler.add(
        Request(
            id="warm-up",
            tokens=prompt,
            prompt_tokens=len(prompt),
            params=SamplingParams(),
            seed=0,
            max_tokens=2,
            eos_token_ids=(),
            arrival=0,
            service_class=config.scheduler.classes[0],
        )
    )
    while (plan := scheduler.schedule()) is not None:
        scheduler.commit(plan, runner.execute(plan).result())
