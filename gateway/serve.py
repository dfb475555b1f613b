"""Running the gateway: from settings to a server that answers, and down again."""

import asyncio
import contextlib
import gc
import shlex
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import orjson
import structlog
import uvicorn
import uvloop

from engine.config import EngineConfig, SchedulerConfig
from engine.engine import Engine
from engine.kv_memory import InsufficientMemory
from engine.models.config import UnsupportedCheckpoint
from gateway.analytics.opening import preload
from gateway.api.service_classes import TierClasses, engine_classes_of
from gateway.app import create_app
from gateway.catalog import default_models, default_pairs
from gateway.connection import server_config
from gateway.errors import OperatorError
from gateway.listener import local_url
from gateway.opening import open_services
from gateway.progress import Report, progress
from gateway.settings import Settings
from gateway.telemetry.logs import configure_logging
from gateway.tenancy import TenantExists, TenantStore, load_pepper, open_database
from gateway.tenancy.schema import upgrade
from kernels.dispatch import DeviceUnavailable

DEMO_TENANT = "demo"
DEMO_QUESTION = "What is the capital of France?"

_log = structlog.get_logger("turnpike.serve")


def run(settings: Settings, listener: socket.socket, *, demo: bool = False) -> None:
    """Load, serve on `listener` until SIGTERM or SIGINT, let running streams end for `shutdown_deadline_s`, return.

    With `demo`, a tenant and a fresh key are there for the first request, which is printed ready to paste.

    Raises:
        OperatorError: a model or the database is not as the settings say.
    """
    pepper = load_pepper(settings)
    secrets = (*settings.secret_values(), pepper.decode(errors="replace"))
    configure_logging(settings.log_level, settings.log_format, secrets)
    asyncio.run(upgrade(settings.database_url.get_secret_value()))
    preloading = threading.Thread(target=preload, args=(settings.analytics_url.get_secret_value(),), name="preload")
    preloading.start()
    try:
        with progress() as report:
            engine = load_engine(settings, report)
    finally:
        preloading.join()
    if not settings.models:
        settings = settings.model_copy(update={"small_models": default_pairs(engine.models)})
    # What is there now stays: a full collection that walked it again took up to 40 ms of everybody's time.
    gc.collect()
    gc.freeze()
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
        runner.run(_serve(settings, engine, pepper, listener, announce))


def load_engine(settings: Settings, report: Report) -> Engine:
    """The engine with the models of the settings, or with the default ones where they name none.

    Raises:
        OperatorError: a model is missing, cannot be served, or does not fit; or the device is not there.
    """
    models: Mapping[str, Path] = settings.models
    small_models: Mapping[str, str] = settings.small_models
    for name, path in models.items():
        if not path.exists():
            raise OperatorError(f"model {name}: there is no {path}")
    if not models:
        models = default_models(settings.models_dir, report)
        small_models = default_pairs(models)
    config = EngineConfig(
        scheduler=SchedulerConfig(
            max_running=settings.max_running,
            step_tokens=max(SchedulerConfig().step_tokens, settings.max_running),
            classes=engine_classes_of(settings),
        ),
        device=settings.device,
        dtype=settings.dtype,
        kv_dtype=settings.kv_dtype,
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
    settings: Settings, engine: Engine, pepper: bytes, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    database = open_database(settings.database_url.get_secret_value())
    try:
        services = await open_services(settings, engine, database, pepper)
        app = create_app(settings, services)
        config = server_config(app, shutdown_deadline_s=settings.shutdown_deadline_s)
        await _Server(config, on_ready).serve(sockets=[listener])
    finally:
        await database.dispose()


class _Server(uvicorn.Server):
    """uvicorn, with a word when it answers, and exit code 0 after a signal that it has obeyed."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As the parent's, without raising the signal again once everything is down."""
        handled = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
