"""Runs the gateway: from settings to serving, and the shutdown.

This module imports only what loading a model needs. All else is imported during the load (`serving.py`).
"""

import asyncio
import gc
import socket
import sys
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import structlog

from engine.config import EngineConfig, SchedulerConfig, step_sizes
from engine.engine import Engine
from engine.memory.kv_memory import InsufficientMemory
from engine.models.config import UnsupportedCheckpoint
from engine.sampling_defaults import SamplingDefaults
from gateway.analytics.absent import ABSENT
from gateway.analytics.opening import is_embedded, preload
from gateway.config.engine_classes import engine_classes_of
from gateway.config.pepper import load_pepper
from gateway.config.safety import readable_secrets, refuse_unsafe, stores_without_tls
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.extras import is_installed
from gateway.process.catalog import FETCH_FIRST, default_models, default_pairs, is_fetchable
from gateway.process.loading import loading
from gateway.process.memory_trim import DATA_FRAMES, block_imports, collecting_nothing, trim_after_startup
from gateway.process.progress import Report, progress
from gateway.process.termination import Termination
from gateway.routing.names import ModelNames
from gateway.telemetry.logs import configure_logging
from kernels.dispatch import DeviceUnavailable, gpu_memory_bytes

GC_ALLOCATIONS = 20_000
"""Net allocations between collections of the young generation."""

_log = structlog.get_logger("turnpike.serve")


def run(
    settings: Settings,
    listener: socket.socket,
    termination: Termination,
    *,
    demo: bool = False,
    free: bool = False,
    stated: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Load the models, serve on `listener` until SIGTERM or SIGINT, drain for `shutdown_deadline_s`, and return.

    `termination` is installed. Its first signal starts the drain, from before the first connection on. With
    `demo`, a tenant and a new key are created, and a banner with a first request is printed. With `free`, models
    without a price cost nothing. `stated`: how the command line states models, by served name; those that are names and
    not there are fetched.

    Raises:
        OperatorError: a model or the database does not match the settings, or the settings are unsafe.
    """
    pepper = load_pepper(settings)
    refuse_unsafe(listener.getsockname()[0], pepper, demo=demo)
    secrets = (*settings.secret_values(), pepper.decode(errors="replace"))
    configure_logging(settings.log_level, settings.log_format, secrets)
    _warn_of_openness(settings)
    _warn_of_absence(settings)
    missing = _refuse_missing(settings, stated)
    if missing:
        from gateway.process import serving
        from gateway.process.model_fetching import fetch_missing

        asyncio.run(serving.prepare_database(settings, pepper, free=free))  # no download for a model without a price
        settings = fetch_missing(settings, missing, _say)
    block_imports(DATA_FRAMES)
    with collecting_nothing():
        with progress() as report, loading(partial(load_engine, settings), report) as loaded:
            from gateway.process import serving

            asyncio.run(serving.prepare_database(settings, pepper, free=free))
            preload(settings.analytics_url.get_secret_value())
            engine = loaded.result()
        trim_after_startup()
        # The objects so far stay alive. A full collection over them stops all requests for 40 ms and more, and would
        # free almost nothing.
        gc.freeze()
    if engine is not None and not settings.models:
        settings = settings.model_copy(update={"small_models": default_pairs(engine.models)})
    # At Python's default of 700, every other request triggers a collection that frees nothing.
    gc.set_threshold(GC_ALLOCATIONS, *gc.get_threshold()[1:])
    serving.serve(settings, engine, pepper, listener, termination, demo=demo)


def _warn_of_openness(settings: Settings) -> None:
    if names := stores_without_tls(settings):
        _log.warning("what goes to these servers can be read on the way: they are not asked for TLS", settings=names)
    for path in readable_secrets(settings):
        _log.warning("every user of this machine can read a secret: chmod 600", path=str(path))


def _warn_of_absence(settings: Settings) -> None:
    if is_embedded(settings.analytics_url.get_secret_value()) and not is_installed("embedded"):
        _log.warning(ABSENT)


def _refuse_missing(settings: Settings, stated: Mapping[str, str]) -> dict[str, str]:
    """The models that are to be fetched, of `stated`.

    Raises:
        OperatorError: another is not there.
    """
    missing = {}
    for name, path in settings.models.items():
        if path.exists():
            continue
        if name not in stated or not is_fetchable(stated[name], settings.models_dir):
            raise OperatorError(f"model {name}: there is no {path}; {FETCH_FIRST}")
        missing[name] = stated[name]
    return missing


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _refuse_unknown_targets(settings: Settings, models: Collection[str], small_models: Mapping[str, str]) -> None:
    names = ModelNames(tuple(models), small_models, settings.model_versions)
    for alias, target in settings.aliases.items():
        if alias in models:
            raise OperatorError(f"aliases: {alias!r} is the name of a model: an alias must have another")
        if names.find(target, {}) is None:
            raise OperatorError(f"aliases: {alias!r} leads to {target!r}, which is not among the served models")


def scheduler_config_of(settings: Settings) -> SchedulerConfig:
    """The settings' scheduler. Sizes that are not set depend on the device.

    Raises:
        OperatorError: the sizes contradict one another.
    """
    sizes = step_sizes(gpu_memory_bytes(settings.device))
    max_running = settings.max_running or sizes.max_running
    step_tokens = settings.step_tokens or max(sizes.step_tokens, max_running)
    if step_tokens < max_running:
        raise OperatorError(f"step_tokens: must be at least max_running, {max_running}, or a decode could starve")
    return SchedulerConfig(
        max_running=max_running,
        step_tokens=step_tokens,
        chunk_tokens=min(settings.chunk_tokens or sizes.chunk_tokens, step_tokens),
        classes=engine_classes_of(settings),
    )


def _drafts(settings: Settings, models: Collection[str], small_models: Mapping[str, str]) -> Mapping[str, str]:
    """The pairs whose small model drafts for the large one: both are in this process."""
    if settings.speculation not in ("auto", "draft"):
        return {}
    return {large: small for large, small in small_models.items() if large in models and small in models}


def load_engine(settings: Settings, report: Report) -> Engine | None:
    """The engine with the settings' models, or with the default models. None: all models are upstreams.

    Raises:
        OperatorError: a model is missing, unsupported or too large, or the device is unavailable.
    """
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
    if not models:
        return None
    config = EngineConfig(
        scheduler=scheduler_config_of(settings),
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
    )
    try:
        return Engine.load(models, config, progress=lambda name, done, total: report(f"loading {name}", done, total))
    except (UnsupportedCheckpoint, InsufficientMemory, DeviceUnavailable) as error:
        raise OperatorError(str(error)) from error
