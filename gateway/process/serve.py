"""Runs the gateway: from settings to serving, and the shutdown.

This module imports only what loading a model needs. All else is imported during the load (`serving.py`).
"""

import asyncio
import gc
import socket
import sys
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog

from gateway.analytics.absent import ABSENT
from gateway.analytics.opening import is_embedded, preload
from gateway.config.pepper import load_pepper
from gateway.config.safety import readable_secrets, refuse_unsafe, refuse_unshared, stores_without_tls
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.extras import is_installed
from gateway.process.catalog import FETCH_FIRST, default_pairs, is_fetchable
from gateway.process.engine_loading import load_engine
from gateway.process.journals import refuse_left_journals
from gateway.process.loading import loading
from gateway.process.memory_trim import DATA_FRAMES, block_imports, collecting_nothing, trim_after_startup
from gateway.process.open_files import raise_open_files
from gateway.process.progress import progress
from gateway.process.termination import Termination
from gateway.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from gateway.upstreams.fleet import LocalEngine

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
    address = listener.getsockname()
    refuse_unsafe(address[0], pepper, demo=demo)
    refuse_unshared(settings, demo=demo)
    configure_logs(settings, pepper)
    refuse_left_journals(settings.journal_path, settings.gateway_processes)
    raise_open_files()
    _warn_of_openness(settings)
    _warn_of_absence(settings)
    missing = _refuse_missing(settings, stated)
    if missing:
        from gateway.process import serving
        from gateway.process.model_fetching import fetch_missing

        asyncio.run(serving.prepare_database(settings, pepper, free=free))  # no download for a model without a price
        settings = fetch_missing(settings, missing, _say)
    if settings.gateway_processes > 1:
        listener.close()  # the processes have sockets of their own
        _run_several(settings, pepper, address[:2], termination, free=free)
        return
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
    settings = with_default_pairs(settings, engine)
    # At Python's default of 700, every other request triggers a collection that frees nothing.
    gc.set_threshold(GC_ALLOCATIONS, *gc.get_threshold()[1:])
    serving.serve(settings, engine, pepper, listener, termination, demo=demo)


def configure_logs(settings: Settings, pepper: bytes) -> None:
    """The log of a process, in which no secret appears."""
    secrets = (*settings.secret_values(), pepper.decode(errors="replace"))
    configure_logging(settings.log_level, settings.log_format, secrets)


def with_default_pairs(settings: Settings, engine: "LocalEngine | None") -> Settings:
    """The settings, with the pairs of the default models if these are served."""
    if engine is None or settings.models:
        return settings
    return settings.model_copy(update={"small_models": default_pairs(engine.models)})


def _run_several(
    settings: Settings, pepper: bytes, address: tuple[str, int], termination: Termination, *, free: bool
) -> None:
    from gateway.process import serving
    from gateway.process.gateway_processes import run_processes

    asyncio.run(serving.prepare_database(settings, pepper, free=free))
    run_processes(settings, pepper, address, termination)


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
