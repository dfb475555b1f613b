"""Loads a model: opens its checkpoint, loads its weights, sizes its KV pool and warms it up."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from engine.catalog.catalog import catalogue_defaults
from engine.checkpoints.checkpoint import Checkpoint, open_checkpoint
from engine.checkpoints.version import checkpoint_version
from engine.config import ADAPTER_SLOTS, EngineConfig
from engine.errors import OutOfDeviceMemory
from engine.execution.parallel.shards import ParallelSizes, Place, places, rank_config, stage_groups
from engine.execution.runner import ModelRunner
from engine.memory.block_pool import BlockPool
from engine.memory.kv_cache import KVCacheManager
from engine.memory.kv_memory import (
    InsufficientMemory,
    KVBudget,
    KVPool,
    StateSlots,
    chosen_budget,
    device_budget,
    host_budget,
    size_pool,
    size_states,
)
from engine.memory.sequence_states import SequenceStates
from engine.memory.state_pool import StatePool
from engine.memory.tiers import DiskStore, KVTier
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.expansion import weight_memory
from engine.models.host_model import HostModel, state_bytes
from engine.models.kv_groups import KVGroups, group_layers, mixed_blocks, one_group
from engine.models.loader import Progress, host_model, load_model
from engine.models.native_model import NativeModel
from engine.runtime.available_memory import available_bytes
from engine.runtime.draft_loading import PreparedDraft, fitting_draft, prepare_draft
from engine.runtime.kv_tier_loading import make_tier, open_store, reason_against
from engine.runtime.loaded_model import LoadedModel, ServedModel
from engine.runtime.model_details import model_details
from engine.runtime.warm_up import warm_up
from engine.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from engine.scheduling.cost import StepCostModel
from engine.scheduling.plan import Executor
from engine.scheduling.scheduler import Scheduler
from engine.speculation.controller import DepthController
from engine.speculation.ngram import NgramProposer
from engine.speculation.proposer import Proposer
from engine.speculation.speculator import Speculator
from engine.text.processor import TextProcessor
from kernels.cpu.native_ops import NativeOps
from kernels.dispatch import check_parts, select_step_ops
from kernels.weights import ModelPart

if TYPE_CHECKING:
    from engine.execution.parallel.rank_processes import RankProcesses
    from engine.grammar.compiler import GrammarCompiler
    from engine.models.transformer import Transformer
    from kernels.ops import Ops

logger = logging.getLogger(__name__)

LoadProgress = Callable[[str, int, int], None]
"""Called with (model name, bytes of weights loaded, bytes in total)."""


def load(
    name: str,
    path: Path,
    ops: "NativeOps | Ops",
    config: EngineConfig,
    share: float,
    progress: LoadProgress | None,
    draft: LoadedModel | None = None,
    ranks: "RankProcesses | None" = None,
) -> LoadedModel:
    """Load one model. `share`: its fraction of the default KV memory. `draft`: the model that drafts for it, if any.
    `ranks`: those that compute it; None: this process does.

    Raises:
        UnsupportedCheckpoint: the checkpoint cannot be served, or `draft` cannot draft for it.
        InsufficientMemory: the KV memory holds fewer than two blocks, or less is available than configured.
        DiskUnavailable: the folder for KV on disk cannot be used.
        DeviceUnavailable: kernels that the model needs fail their self-test on the GPU.
        RankLost: a rank has ended.
    """
    checkpoint = open_checkpoint(path, config.weight_cache)
    model_config = checkpoint.config
    window = _window(config, model_config)
    text = checkpoint.text_processor()
    if draft is not None:
        text = text.sharing(draft.served.text)
    if draft is not None:
        draft = fitting_draft(draft, name, model_config, text, config)
    if ops.on_gpu:
        check_parts(_tested_parts(model_config, adapted=bool(config.adapter_slots)))
    groups = _groups(name, model_config, draft, config, 1 if ranks is None else ranks.sizes.tensor)
    adapter_slots = _adapter_slots(config, on_gpu=ops.on_gpu)
    block_bytes = sum(_block_bytes(ops, *part) for part in _parts(model_config, groups, ranks))
    host_pool = None if ops.on_gpu else _host_pool(config, model_config, draft, ops, share, groups, block_bytes)
    report = None if progress is None else lambda done, total: progress(name, done, total)
    memory = weight_memory(checkpoint, ops.takes_blocks, ops.dtype.itemsize)
    if memory.notice is not None:
        logger.warning("%s: %s", name, memory.notice)
    if memory.saving is not None:
        logger.info("%s: %s", name, memory.saving)
    model = None if ranks is not None else load_model(checkpoint, ops, window, report, config.quantize, groups)
    on_host: HostModel | None = None if model is None or ops.on_gpu else host_model(model)
    if ranks is not None:
        on_host = _on_ranks(ranks, checkpoint, ops, report, config, groups)
    prepared = None
    if draft is not None:
        draft_window = _window(config, draft.config)
        prepared = prepare_draft(draft, name, on_host, config, draft_window, shares_table=ranks is None)
    pool = host_pool or _device_pool(config, _on_gpu(model), share, groups, draft, prepared)
    logger.info("%s has KV memory for %s", name, pool)
    if pool.states is not None:
        config = replace(config, scheduler=replace(config.scheduler, max_running=pool.states.max_running))
    drafts, stages = config.ngram or draft is not None, 1 if ranks is None else ranks.sizes.stages
    blocks, cost_model = BlockPool(pool.num_blocks), StepCostModel()
    runner = _runner(on_host, model, pool, config, min(window, pool.tokens), drafts=drafts, stages=stages)
    store = _disk_store(name, path, runner, config, share, pool, drafted=draft is not None, ranks=ranks is not None)
    tier = None if store is None else make_tier(store, blocks, config, cost_model)
    cache = _cache(blocks, pool, groups, prefix_cache=config.prefix_cache, tier=tier)
    scheduler = Scheduler(
        config.scheduler,
        cache,
        window,
        cost_model,
        longest_step_ns=config.longest_step_ns,
        adapter_slots=adapter_slots,
        adapter_wait_ns=int(1e9 * config.adapter_wait_seconds),
    )
    if adapter_slots and isinstance(runner, ModelRunner):
        runner.allocate_adapters(adapter_slots)
    proposers = _proposers(pool, config, prepared) if runner.takes_drafts else []
    new_cache = partial(_cache, memory=pool, groups=groups, prefix_cache=False)
    warm_up(runner, proposers, new_cache, pool.num_blocks, config, scheduler)
    policy = DepthController(scheduler.cost_model, max_depth=config.draft_depth, below=config.speculate_below)
    speculator = Speculator(proposers, policy) if proposers else None
    stated = (*model_config.eos_token_ids, *text.tokenizer.eos_token_ids, *text.dialect.turn_ends)
    eos_token_ids = tuple(dict.fromkeys(stated))
    served = ServedModel(
        name,
        text,
        scheduler.window_tokens,
        {
            service_class.name: scheduler.window_tokens_of(service_class.name)
            for service_class in config.scheduler.classes
        },
        model_config.vocab_size,
        eos_token_ids,
        int(time.time()),
        checkpoint_version(path),
        _grammars(text, model_config.vocab_size, eos_token_ids),
        config.prefix_cache,
        _sampling_defaults(config, name, checkpoint),
        model_details(path, checkpoint, config.quantize, pool),
        scheduler.adapters.slots,
    )
    on_gpu = _on_gpu(model) if ops.on_gpu else None
    return LoadedModel(served, path, on_host, scheduler, runner, pool, speculator, on_gpu, store)


def _disk_store(
    name: str,
    path: Path,
    runner: Executor,
    config: EngineConfig,
    share: float,
    pool: KVPool,
    *,
    drafted: bool,
    ranks: bool,
) -> DiskStore | None:
    """The file for the model's KV blocks; None: none is configured, or such a model has none.

    Raises:
        DiskUnavailable: the file cannot be used.
    """
    if config.kv_disk_folder is None:
        return None
    recurrent = pool.states is not None
    reason = reason_against(
        config,
        on_gpu=not isinstance(runner, ModelRunner),
        ranks=ranks,
        drafted=drafted,
        recurrent=recurrent,
        groups=pool.groups,
    )
    if reason is not None:
        logger.warning("%s keeps no KV on disk: %s", name, reason)
        return None
    assert isinstance(runner, ModelRunner), "a reason is missing"
    return open_store(name, path, runner.kv_block_bytes, runner.kv_format, config, share)


def _adapter_slots(config: EngineConfig, *, on_gpu: bool) -> int:
    if config.adapter_slots is not None:
        return config.adapter_slots
    return 0 if on_gpu else ADAPTER_SLOTS


def _tested_parts(config: ModelConfig, *, adapted: bool) -> list[ModelPart]:
    """Parts of a model whose kernels are tested on a GPU when such a model is loaded. `adapted`: it takes adapters."""
    there: dict[ModelPart, object] = {
        "experts": config.experts,
        "latents": config.latent,
        "delta nets": config.linear,
        "adapters": adapted or None,
    }
    return [part for part, described in there.items() if described is not None]


def _sampling_defaults(config: EngineConfig, name: str, checkpoint: Checkpoint) -> SamplingDefaults:
    """The model's sampling defaults: those of the config, then of the catalogue, then of the checkpoint."""
    defaults = config.sampling_defaults.get(name, NO_DEFAULTS)
    if config.generation_config == "off":
        return defaults
    return defaults.over(catalogue_defaults(checkpoint.path)).over(checkpoint.sampling_defaults)


def _proposers(pool: KVPool, config: EngineConfig, draft: PreparedDraft | None) -> list[Proposer]:
    """The proposers of draft tokens in the order in which they are asked: a lookup is free, so it comes first."""
    slots = config.scheduler.max_running
    proposers: list[Proposer] = [NgramProposer(slots)] if config.ngram else []
    if draft is not None:
        proposers.append(draft.proposer(pool.num_blocks, slots))
    return proposers


def _parts(config: ModelConfig, groups: KVGroups, ranks: "RankProcesses | None") -> list[tuple[ModelConfig, KVGroups]]:
    """The part of each rank: its config, and the groups of its layers.

    Raises:
        UnsupportedCheckpoint: the model cannot be cut so.
    """
    if ranks is None:
        return [(config, groups)]
    return [(rank_config(config, place), stage_groups(config, groups, place)) for place in places(ranks.sizes)]


def _on_ranks(
    ranks: "RankProcesses",
    checkpoint: Checkpoint,
    ops: "NativeOps | Ops",
    report: Progress | None,
    config: EngineConfig,
    groups: KVGroups,
) -> HostModel:
    from engine.execution.parallel.loading import ModelOnRanks, load_on_ranks  # imports torch

    assert not isinstance(ops, NativeOps), "torch computes on ranks"
    window = _window(config, checkpoint.config)
    return load_on_ranks(ranks, ModelOnRanks(checkpoint, config.weight_cache, groups, window), ops, report)


def _groups(
    name: str, model_config: ModelConfig, draft: LoadedModel | None, config: EngineConfig, tensor: int
) -> KVGroups:
    """The groups of the model's layers, each of which `tensor` ranks compute. One for a model that drafts or is drafted
    for, which have the same blocks, and for a model with recurrent states, whose prefixes end at these."""
    drafts = draft is not None or name in config.drafts.values()
    if drafts or model_config.linear is not None:
        return one_group(model_config.kv_layers)
    cut = rank_config(model_config, Place(ParallelSizes(tensor), 0))
    return group_layers(cut.kv_windows, _window(config, model_config), cut.kv_heads)


def _host_pool(
    config: EngineConfig,
    model_config: ModelConfig,
    draft: LoadedModel | None,
    ops: "NativeOps | Ops",
    share: float,
    groups: KVGroups,
    block_bytes: int,
) -> KVPool:
    """KV memory on the host. Its size is known before the model is loaded. `block_bytes`: on all ranks together."""
    limit = host_budget(available_bytes(), share)
    budget = limit if config.kv_cache_bytes is None else chosen_budget(config.kv_cache_bytes)
    states = _state_slots(config, model_config, budget)
    return size_pool(
        budget,
        block_bytes,
        slots=config.scheduler.max_running if states is None else states.max_running,
        window=_window(config, model_config),
        draft_block_bytes=_draft_block_bytes(ops, draft),
        states=states,
        groups=len(groups.windows),
    )


def _cache(
    blocks: BlockPool, memory: KVPool, groups: KVGroups, *, prefix_cache: bool, tier: KVTier | None = None
) -> KVCacheManager:
    slots = memory.states
    states = None if slots is None else SequenceStates(StatePool(slots.num_slots, slots.max_running))
    return KVCacheManager(blocks, prefix_cache=prefix_cache, states=states, windows=groups.windows[1:], tier=tier)


def _on_gpu(model: "NativeModel | Transformer | None") -> "Transformer":
    assert model is not None, "ranks compute this model"
    assert not isinstance(model, NativeModel), "a GPU computes this model"
    return model


def _device_pool(
    config: EngineConfig,
    model: "Transformer",
    share: float,
    groups: KVGroups,
    draft: LoadedModel | None,
    prepared: PreparedDraft | None,
) -> KVPool:
    """KV memory on a GPU: what the loaded model and its largest steps leave, and those of its draft model."""
    from engine.execution.device.placement import measure_memory  # imports torch

    _allocate_adapters(model, config)
    window = _window(config, model.config)
    try:
        steps, drafts = None if prepared is None else prepared.device_steps, config.ngram or draft is not None
        memory = measure_memory(model, select_step_ops(model.ops), config.scheduler, window, steps, drafts=drafts)
    except OutOfDeviceMemory as error:
        raise InsufficientMemory(f"the GPU has no room for the model's largest steps: {error}") from error
    limit = device_budget(memory, share)
    budget = limit if config.kv_cache_bytes is None else chosen_budget(config.kv_cache_bytes, limit)
    states = _state_slots(config, model.config, budget)
    return size_pool(
        budget,
        _block_bytes(model.ops, model.config, groups),
        slots=config.scheduler.max_running if states is None else states.max_running,
        window=window,
        draft_block_bytes=_draft_block_bytes(model.ops, draft),
        states=states,
        groups=len(groups.windows),
    )


def _allocate_adapters(model: "Transformer", config: EngineConfig) -> None:
    """Reserve the slots of adapters on a GPU, before the memory for KV is measured."""
    from engine.execution.device.placement import allocate_adapters  # imports torch

    if not config.adapter_slots:
        return
    try:
        allocate_adapters(model, config.adapter_slots, config.max_adapter_rank)
    except OutOfDeviceMemory as error:
        wanted = f"{config.adapter_slots} adapters of rank {config.max_adapter_rank}"
        raise InsufficientMemory(f"the GPU has no room for {wanted}: {error}; lower adapter_slots") from error
    except ValueError as error:
        raise UnsupportedCheckpoint(f"max_adapter_rank: {error}") from error


def _state_slots(config: EngineConfig, model_config: ModelConfig, budget: KVBudget) -> StateSlots | None:
    """The state slots of a model with recurrent layers, within the budget of its KV."""
    if not (slot_bytes := state_bytes(model_config)):
        return None
    running = config.scheduler.max_running
    return size_states(budget, slot_bytes, max_running=running, saves=config.prefix_cache)


def _block_bytes(ops: "NativeOps | Ops", config: ModelConfig, groups: KVGroups) -> int:
    """Bytes of KV in one block: K and V of 16 tokens in the layers of a group, in the backend's format."""
    if (blocks := mixed_blocks(config, groups)) is not None:
        return ops.allocate_mixed_kv(1, blocks).nbytes
    return ops.allocate_kv(groups.layers, 1, config.num_kv_heads, config.head_dim).nbytes


def _draft_block_bytes(ops: "NativeOps | Ops", draft: LoadedModel | None) -> int:
    return 0 if draft is None else _block_bytes(ops, draft.config, one_group(draft.config.kv_layers))


def _runner(
    on_host: HostModel | None,
    model: "NativeModel | Transformer | None",
    pool: KVPool,
    config: EngineConfig,
    window: int,
    *,
    drafts: bool,
    stages: int,
) -> Executor:
    slots = config.scheduler.max_running
    states = 0 if pool.states is None else pool.states.num_slots
    if on_host is not None:
        new_runner: Callable[..., ModelRunner] = ModelRunner
        if stages > 1:
            from engine.execution.parallel.pipelined_runner import PipelinedRunner  # imports torch

            new_runner = PipelinedRunner
        return new_runner(
            on_host,
            num_blocks=pool.num_blocks,
            num_slots=slots,
            max_model_len=window,
            num_states=states,
            groups=pool.groups,
        )
    from engine.execution.device.placement import place

    on_gpu = _on_gpu(model)
    step_ops = select_step_ops(on_gpu.ops)
    try:
        return place(
            on_gpu,
            step_ops,
            num_blocks=pool.num_blocks,
            num_slots=slots,
            max_model_len=window,
            num_states=states,
            drafts=drafts,
        )
    except OutOfDeviceMemory as error:
        raise InsufficientMemory(f"the GPU has no room for the KV memory and CUDA graphs: {error}") from error


def _grammars(text: TextProcessor, vocab_size: int, eos_token_ids: tuple[int, ...]) -> "GrammarCompiler | None":
    """None for a model without an end token: it could not signal that the text is complete. None, too, on a machine for
    kernels alone, which has no llguidance."""
    if not eos_token_ids:
        return None
    if find_spec("llguidance") is None:
        logger.warning("llguidance is not installed: no grammars")
        return None
    from engine.grammar.compiler import GrammarCompiler
    from engine.grammar.vocabulary import LibraryVocabulary

    return GrammarCompiler(lambda: LibraryVocabulary.of(text.tokenizer, vocab_size, eos_token_ids))


def _window(config: EngineConfig, model_config: ModelConfig) -> int:
    return min(config.max_model_len or model_config.max_position, model_config.max_position)
