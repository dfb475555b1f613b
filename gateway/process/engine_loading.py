"""Loads the engine that the settings describe: in this process, in one of its own, or on workers."""

import hmac
import ssl
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from engine.config import EngineConfig, SchedulerConfig, StatedSizes
from engine.engine import Engine
from engine.errors import EngineUnavailable, RankLost
from engine.memory.kv_memory import InsufficientMemory
from engine.memory.tiers import DiskUnavailable
from engine.models.config import UnsupportedCheckpoint
from engine.runtime.model_loading import LoadProgress
from engine.sampling_defaults import SamplingDefaults
from engine.workers.messages import Start
from engine.workers.remote_link import parse_address
from engine.workers.replica_engine import ReplicaEngine
from engine.workers.sources import parse_source
from engine.workers.tls import TLSFiles, client_context
from engine.workers.unix_address import UnixAddress
from engine.workers.worker_engine import WorkerEngine
from gateway.config.engine_classes import engine_classes_of
from gateway.config.pepper import load_pepper
from gateway.config.settings import Settings
from gateway.config.worker_tls import StatedTLS
from gateway.errors import OperatorError
from gateway.process.catalog import default_models, default_pairs
from gateway.process.progress import Report
from gateway.routing.names import ModelNames
from kernels.dispatch import DeviceUnavailable, gpu_memory_bytes
from kernels.gpu import has_cuda_driver

E = TypeVar("E")


def _refuse_unknown_targets(settings: Settings, models: Collection[str], small_models: Mapping[str, str]) -> None:
    names = ModelNames(tuple(models), small_models, settings.model_versions)
    for alias, target in settings.aliases.items():
        if alias in models:
            raise OperatorError(f"aliases: {alias!r} is the name of a model: an alias must have another")
        if names.find(target, {}) is None:
            raise OperatorError(f"aliases: {alias!r} leads to {target!r}, which is not among the served models")


def stated_sizes(settings: Settings) -> StatedSizes:
    """The sizes of a step that are set."""
    return StatedSizes(settings.max_running, settings.step_tokens, settings.chunk_tokens)


def scheduler_config_of(settings: Settings, gpu_bytes: int | None) -> SchedulerConfig:
    """The settings' scheduler. Sizes that are not set depend on the memory of the GPU; None: they are a CPU's.

    Raises:
        OperatorError: the sizes contradict one another.
    """
    sizes = stated_sizes(settings).on(gpu_bytes)
    if sizes.step_tokens < sizes.max_running:
        raise OperatorError(f"step_tokens: must be at least max_running, {sizes.max_running}, or a decode could starve")
    return SchedulerConfig(**sizes._asdict(), classes=engine_classes_of(settings))


def _drafts(settings: Settings, models: Collection[str], small_models: Mapping[str, str]) -> Mapping[str, str]:
    """The pairs whose small model drafts for the large one: both are computed by one engine."""
    if settings.speculation not in ("auto", "draft"):
        return {}
    return {large: small for large, small in small_models.items() if large in models and small in models}


def _has_own_process(settings: Settings) -> bool:
    """Whether the engine is in a process of its own. Where it is, this process does not touch the device."""
    if settings.engine_process is not None:
        return settings.engine_process
    several = settings.tensor_parallel != 1 or settings.pipeline_parallel != 1  # each of them may end
    return several or settings.device == "cuda" or (settings.device == "auto" and has_cuda_driver())


def tls_files(stated: StatedTLS) -> TLSFiles:
    """The files as the engine takes them."""
    return TLSFiles(stated.certificate, stated.key, stated.ca)


def shared_salt_key(settings: Settings) -> bytes:
    """The key of the salts of tenants' prefix caches, the same in all gateways with one pepper: on workers that they
    share, each finds the prefixes that the others have sent. It does not tell the pepper.

    Raises:
        UnusablePepper: as `load_pepper`.
    """
    return hmac.digest(load_pepper(settings), b"salts of prefix caches", "sha256")


def worker_context(settings: Settings, models: Collection[str]) -> ssl.SSLContext | None:
    """The certificates for connections to the settings' workers; None: without TLS. `models`: the names that are
    served.

    Raises:
        OperatorError: `replicas` and `models` have different names, or an address or a certificate cannot be used.
    """
    if different := set(settings.replicas) ^ set(models):
        raise OperatorError(f"replicas: {min(different)!r} is not both in `replicas` and in `models`")
    try:
        stated = [each for some in settings.replicas.values() for each in some]
        for each in stated:
            parse_source(each)
        context = None if settings.worker_tls is None else client_context(tls_files(settings.worker_tls))
    except ValueError as error:
        raise OperatorError(f"replicas: {error}") from error
    except OSError as error:
        raise OperatorError(f"worker_tls: {error}") from error
    addresses = [parse_address(each) for each in stated if each.startswith(("tcp://", "unix:"))]
    if context is None and (exposed := next((each for each in addresses if not each.is_local), None)):
        raise OperatorError(f"replicas: {exposed} is on another machine: set worker_tls")
    return context


def _connect(settings: Settings, models: Mapping[str, Path], config: EngineConfig) -> ReplicaEngine:
    """The engine of the settings' workers. Raises: OperatorError: as `worker_context`."""
    context = worker_context(settings, models)
    config = replace(config, salt_key=shared_salt_key(settings))
    return ReplicaEngine(models, settings.replicas, config, context, routing=settings.replica_routing)


def load_engine(settings: Settings, report: Report) -> Engine | WorkerEngine | ReplicaEngine | None:
    """The engine with the settings' models, or with the default models: in this process, in one of its own, or on the
    settings' workers. None: all models are upstreams.

    Raises:
        OperatorError: a model is missing, unsupported or too large, or the device or a worker is unavailable.
    """
    own_process = _has_own_process(settings)
    loads_here = not (settings.replicas or own_process) and bool(settings.models or not settings.served_names)
    models, config = _stated(settings, report, gpu_memory_bytes(settings.device) if loads_here else None)
    if not models:
        return None
    if settings.replicas:
        return _refusing(lambda: _connect(settings, models, config))
    if own_process:
        return _refusing(lambda: WorkerEngine(models, config, _loading(report), sizes=stated_sizes(settings)))
    return _refusing(lambda: Engine.load(models, config, progress=_loading(report)))


def load_engine_here(settings: Settings, report: Report) -> Engine:
    """As `load_engine`, in this process."""
    models, config = _stated(settings, report, gpu_memory_bytes(settings.device))
    return _refusing(lambda: Engine.load(models, config, progress=_loading(report)))


def shared_engine_start(settings: Settings, report: Report, listen: Path, log_level: int) -> Start | None:
    """The start of an engine process for the clients that come to the socket file `listen`. None: the settings have
    no model that is computed on this machine.

    Raises:
        OperatorError: the settings contradict one another.
    """
    models, config = _stated(settings, report, None)
    if settings.replicas or not models:
        return None
    return Start({name: Path(path) for name, path in models.items()}, config, log_level, stated_sizes(settings), listen)


def connect_engine(settings: Settings, report: Report, listen: Path | None, salt_key: bytes) -> ReplicaEngine | None:
    """A client of that engine process, or of the settings' workers if `listen` is None. `salt_key`: all clients have
    the same, so that a prefix that one has computed is found by the others. None: all models are upstreams.

    Raises:
        OperatorError: as `load_engine`.
    """
    models, config = _stated(settings, report, None)
    config = replace(config, salt_key=config.salt_key or salt_key)
    if not models:
        return None
    if listen is None:
        return _refusing(lambda: _connect(settings, models, config))
    addresses = {name: (str(UnixAddress(listen)),) for name in models}
    return _refusing(lambda: ReplicaEngine(models, addresses, config, None))


def _loading(report: Report) -> LoadProgress:
    return lambda name, done, total: report(f"loading {name}", done, total)


def _refusing(load: Callable[[], E]) -> E:
    try:
        return load()
    except (
        UnsupportedCheckpoint,
        InsufficientMemory,
        DiskUnavailable,
        DeviceUnavailable,
        EngineUnavailable,
        RankLost,
        ValueError,
    ) as error:
        raise OperatorError(str(error)) from error


def _stated(settings: Settings, report: Report, gpu_bytes: int | None) -> tuple[Mapping[str, Path], EngineConfig]:
    """The models and the config of the engine that the settings state. `gpu_bytes`: as in `scheduler_config_of`."""
    models: Mapping[str, Path] = settings.models
    small_models: Mapping[str, str] = settings.small_models
    if not settings.served_names:
        models = default_models(settings.models_dir, report)
        small_models = default_pairs(models)
    served = {*models, *settings.upstreams}
    for key, names in (("embeddings", settings.embeddings), ("sampling_defaults", settings.sampling_defaults)):
        if unknown := next((name for name in names if name not in served), None):
            raise OperatorError(f"{key}: the model {unknown!r} is not among the served ones")
    _refuse_unknown_targets(settings, served, small_models)
    return models, EngineConfig(
        scheduler=scheduler_config_of(settings, gpu_bytes),
        device=settings.device,
        dtype=settings.dtype,
        kv_dtype=settings.kv_dtype,
        quantize=settings.quantize,
        sampling_defaults={
            name: SamplingDefaults(**stated.model_dump())
            for name, stated in settings.sampling_defaults.items()
            if name in models
        },
        generation_config=settings.generation_config,
        kv_cache_bytes=settings.kv_cache_bytes,
        kv_disk_folder=settings.kv_disk.folder,
        kv_disk_bytes=settings.kv_disk.bytes,
        kv_disk_idle_seconds=settings.kv_disk.idle_s,
        salt_key=None if settings.kv_disk.folder is None else shared_salt_key(settings),
        max_model_len=settings.max_model_len,
        threads=settings.threads,
        weight_cache=settings.models_dir / "expanded",
        step_timeout_seconds=settings.step_timeout_s,
        ngram=settings.speculation in ("auto", "ngram"),
        drafts=_drafts(settings, models, small_models),
        require_drafts=settings.speculation == "draft",
        draft_depth=settings.max_draft_tokens,
        speculate_below=settings.speculate_below,
        adapter_slots=settings.adapters.slots,
        max_adapter_rank=settings.adapters.max_rank,
        adapter_cache_bytes=settings.adapters.cache_bytes,
        adapter_wait_seconds=settings.adapters.wait_s,
        tensor_parallel=settings.tensor_parallel,
        pipeline_parallel=settings.pipeline_parallel,
    )
