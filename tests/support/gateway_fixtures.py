"""Fixtures: the application with a fake engine and fake keys, in-process and on a loopback port.

A conftest of tests that want them imports all of this module.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import structlog
from starlette.applications import Starlette
from starlette.testclient import TestClient

from gateway.admission import Limiter, MemoryStore
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.metering.journal.journal import Journal
from gateway.refusals.refusal_log import RefusalLog
from gateway.sessions import Sessions
from gateway.sessions.memory import MemorySessionStore
from gateway.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine
from tests.support.gateway import AUTHORISED, KEY, MAX_BODY_BYTES, FakeAuthenticator, Server, serving
from tests.support.refusal_table import RefusalTable
from tests.support.servers import RedisServer, running_redis
from tests.support.services import services_with
from tests.support.started import started

if TYPE_CHECKING:
    import openai

__all__ = [
    "app",
    "authenticator",
    "client",
    "engine",
    "journal",
    "limiter",
    "metrics",
    "no_place_is_kept",
    "redis",
    "refusal_table",
    "refusals",
    "sdk",
    "server",
    "sessions",
    "silent_log",
]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """One that a test may stop."""
    yield from started(running_redis)


@pytest.fixture(autouse=True)
def silent_log() -> Iterator[None]:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def no_place_is_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However its requests went, a test leaves nothing reserved in any engine."""
    engines: list[FakeEngine] = []
    make = FakeEngine.__init__

    def noted(engine: FakeEngine, *args, **options) -> None:
        make(engine, *args, **options)
        engines.append(engine)

    monkeypatch.setattr(FakeEngine, "__init__", noted)
    yield
    for engine in engines:
        assert not any(engine.reservations().values()), "a reservation outlives its request"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def authenticator() -> FakeAuthenticator:
    return FakeAuthenticator()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(lambda: {})


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(MemoryStore())


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(MemorySessionStore(), wait_s=0.2)


@pytest.fixture
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    """The application closes it."""
    return Journal(tmp_path_factory.mktemp("usage") / "journal.db", interval_ms=5, min_free_bytes=0)


@pytest.fixture
def refusal_table() -> RefusalTable:
    return RefusalTable()


@pytest.fixture
def refusals(refusal_table: RefusalTable) -> RefusalLog:
    return RefusalLog(refusal_table, "journal-1")


@pytest.fixture
def app(
    engine: FakeEngine,
    authenticator: FakeAuthenticator,
    metrics: Metrics,
    limiter: Limiter,
    journal: Journal,
    sessions: Sessions,
    refusals: RefusalLog,
    tmp_path_factory: pytest.TempPathFactory,
) -> Starlette:
    folder = tmp_path_factory.mktemp("data")
    settings = Settings(data_dir=folder, max_body_bytes=MAX_BODY_BYTES, embeddings={"tiny": "mean"})
    given = {"metrics": metrics, "limiter": limiter, "journal": journal, "sessions": sessions, "refusals": refusals}
    return create_app(settings, services_with(settings.data_dir, engine, authenticator, **given))


@pytest.fixture
def client(app: Starlette) -> Iterator[TestClient]:
    """With the standard tenant's key. An exception that reaches the server fails the test."""
    with TestClient(app, headers=AUTHORISED) as client:
        yield client


@pytest.fixture
def server(app: Starlette) -> Iterator[Server]:
    """The real server on a free port, in a thread of its own."""
    with serving(app) as server:
        yield server


@pytest.fixture
def sdk(server: Server) -> Iterator["openai.OpenAI"]:
    """OpenAI's own client, with the standard tenant's key."""
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk:
        yield sdk
