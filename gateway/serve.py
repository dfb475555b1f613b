"""Running the gateway: from settings to a server that answers, and down again."""

import asyncio
import contextlib
import gc
import shlex
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson
import structlog
import uvloop

from engine.config import EngineConfig, SchedulerConfig
from engine.engine import Engine
from engine.kv_memory import InsufficientMemory
from engine.models.config import UnsupportedCheckpoint
from gateway.analytics.opening import preload
from gateway.api.service_classes import TierClasses, engine_classes_of
from gateway.app import create_app
from gateway.catalog import default_models, default_pairs
from gateway.errors import OperatorError
from gateway.footprint import leave_the_start_behind
from gateway.listener import local_url
from gateway.opening import open_prices, open_services
from gateway.progress import Report, progress
from gateway.safety import readable_secrets, refuse_unsafe, stores_without_tls
from gateway.server import Server
from gateway.settings import Settings
from gateway.telemetry.logs import configure_logging
from gateway.tenancy import TenantExists, TenantStore, load_pepper, open_database
from gateway.tenancy.schema import upgrade
from gateway.termination import Termination
from kernels.dispatch import DeviceUnavailable

GC_ALLOCATIONS = 20_000
"""Objects made and not gone, between collections of young garbage."""
DEMO_TENANT = "demo"
DEMO_QUESTION = "What is the capital of France?"

_log = structlog.get_logger("turnpike.serve")


def run(settings: Settings, listener: socket.socket, termination: Termination, *, demo: bool = False) -> None:
    """Load, serve on `listener` until SIGTERM or SIGINT, let running streams end for `shutdown_deadline_s`, return.

    `termination` is in place; from when the server answers on, its first signal begins that drain.

    With `demo`, a tenant and a fresh key are there for the first request, which is printed ready to paste.

    Raises:
        OperatorError: a model or the database is not as the settings say, or that would be unsafe.
    """
    pepper = load_pepper(settings)
    refuse_unsafe(listener.getsockname()[0], pepper, demo=demo)
    secrets = (*settings.secret_values(), pepper.decode(errors="replace"))
    configure_logging(settings.log_level, settings.log_format, secrets)
    _warn_of_openness(settings)
    _refuse_missing(settings)
    asyncio.run(_prepare_database(settings))
    preloading = threading.Thread(target=preload, args=(settings.analytics_url.get_secret_value(),), name="preload")
    preloading.start()
    try:
        with progress() as report:
            engine = load_engine(settings, report)
    finally:
        preloading.join()
    if not settings.models:
        settings = settings.model_copy(update={"small_models": default_pairs(engine.models)})
    leave_the_start_behind()
    # What is there now stays: a full collection that walked it again took up to 40 ms of everybody's time.
    gc.freeze()
    # At Python's 700, every other request was walked through by a collection that found nothing.
    gc.set_threshold(GC_ALLOCATIONS, *gc.get_threshold()[1:])
    url = local_url(listener)
    invitation = ""
    if demo:
        key = asyncio.run(_demo_key(settings, pepper))
        invitation = demo_invitation(url, next(iter(engine.models)), key)

    def announce() -> None:
        _log.info("ready", url=url, models=list(engine.models))
        if invitation:
            print(invitation, flush=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, engine, pepper, listener, termination, announce))


def _warn_of_openness(settings: Settings) -> None:
    if names := stores_without_tls(settings):
        _log.warning("what goes to these servers can be read on the way: they are not asked for TLS", settings=names)
    for path in readable_secrets(settings):
        _log.warning("every user of this machine can read a secret: chmod 600", path=str(path))


def _refuse_missing(settings: Settings) -> None:
    for name, path in settings.models.items():
        if not path.exists():
            raise OperatorError(f"model {name}: there is no {path}")


async def _prepare_database(settings: Settings) -> None:
    """Bring its tables up to date; and refuse a model without a price now rather than when it is loaded."""
    url = settings.database_url.get_secret_value()
    await upgrade(url)
    database = open_database(url)
    try:
        await open_prices(settings, settings.models, database)
    finally:
        await database.dispose()


def load_engine(settings: Settings, report: Report) -> Engine:
    """The engine with the models of the settings, or with the default ones where they name none.

    Raises:
        OperatorError: a model is missing, cannot be served, or does not fit; or the device is not there.
    """
    models: Mapping[str, Path] = settings.models
    small_models: Mapping[str, str] = settings.small_models
    if not models:
        models = default_models(settings.models_dir, report)
        small_models = default_pairs(models)
    if unknown := next((name for name in settings.embeddings if name not in models), None):
        raise OperatorError(f"embeddings: the model {unknown!r} is not among the served ones")
    config = EngineConfig(
        scheduler=SchedulerConfig(
            max_running=settings.max_running,
            step_tokens=max(SchedulerConfig().step_tokens, settings.max_running),
            classes=engine_classes_of(settings),
        ),
        device=settings.device,
        dtype=settings.dtype,
        kv_dtype=settings.kv_dtype,
        quantize=settings.quantize,
        kv_cache_bytes=settings.kv_cache_bytes,
        max_model_len=settings.max_model_len,
        threads=settings.threads,
        weight_cache=settings.models_dir / "expanded",
        step_timeout_seconds=settings.step_timeout_s,
        ngram=settings.speculation in ("auto", "ngram"),
        drafts=small_models if settings.speculation in ("auto", "draft") else {},
        require_drafts=settings.speculation == "draft",
        draft_depth=settings.max_draft_tokens,
        speculate_below=settings.speculate_below,
    )
    try:
        return Engine.load(models, config, progress=lambda name, done, total: report(f"loading {name}", done, total))
    except (UnsupportedCheckpoint, InsufficientMemory, DeviceUnavailable) as error:
        raise OperatorError(str(error)) from error


def demo_invitation(url: str, model: str, key: str) -> str:
    """The command that asks the demo's question, to paste into a shell."""
    body = {"model": model, "messages": [{"role": "user", "content": DEMO_QUESTION}], "temperature": 0, "stream": True}
    command = [
        *("curl", "-N", f"{url}/v1/chat/completions"),
        *("-H", f"Authorization: Bearer {key}"),
        *("-H", "Content-Type: application/json"),
        *("-d", orjson.dumps(body).decode()),
    ]
    return f"\nTurnpike is ready. Ask it something:\n\n{shlex.join(command)}\n"


async def _demo_key(settings: Settings, pepper: bytes) -> str:
    database = open_database(settings.database_url.get_secret_value())
    store = TenantStore(database, pepper)
    try:
        with contextlib.suppress(TenantExists):
            await store.create_tenant(DEMO_TENANT, TierClasses(settings).default_tier)
        return (await store.create_key(DEMO_TENANT, "turnpike serve --demo")).plaintext
    finally:
        await database.dispose()


async def _serve(
    settings: Settings,
    engine: Engine,
    pepper: bytes,
    listener: socket.socket,
    termination: Termination,
    announce: Callable[[], None],
) -> None:
    database = open_database(settings.database_url.get_secret_value())
    try:
        services = await open_services(settings, engine, database, pepper)

        def on_ready() -> None:
            termination.begins(server.begin_drain)
            announce()

        server = Server(
            create_app(settings, services),
            services.drain,
            delay_s=settings.drain_delay_s,
            deadline_s=settings.shutdown_deadline_s,
            on_ready=on_ready,
        )
        await server.serve(sockets=[listener])
    finally:
        await database.dispose()
