"""The application with a fake engine and fake keys: in-process, and on a loopback port."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import structlog
from starlette.applications import Starlette
from starlette.testclient import TestClient

from gateway.admission import Limiter, MemoryStore
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.http.drain import Drain
from gateway.metering.journal.journal import Journal
from gateway.process.listener import bind
from gateway.process.server import Server as TurnpikeServer
from gateway.sessions import Sessions
from gateway.sessions.memory import MemorySessionStore
from gateway.telemetry.metrics import Metrics
from gateway.tenancy.errors import InvalidKey, StoreUnavailable
from gateway.tenancy.records import Principal
from tests.support.fake_engine import FakeEngine
from tests.support.servers import RedisServer, ServerMissing, running_redis
from tests.support.services import services_with

KEY = "tp-standard"
PREMIUM_KEY = "tp-premium"
AUTHORISED = {"authorization": f"Bearer {KEY}"}
MAX_BODY_BYTES = 256 * 1024


class FakeAuthenticator:
    def __init__(self) -> None:
        self.down = False
        self.closed = False
        self.principals = {
            KEY: Principal("tenant-1", "acme", "standard", "pubid1"),
            PREMIUM_KEY: Principal("tenant-2", "globex", "premium", "pubid2"),
        }

    async def authenticate(self, presented: str) -> Principal:
        if self.down:
            raise StoreUnavailable("the database at db.internal does not answer")
        if presented not in self.principals:
            raise InvalidKey("unknown API key")
        return self.principals[presented]

    async def aclose(self) -> None:
        self.closed = True


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """One that a test may stop."""
    try:
        with running_redis() as server:
            yield server
    except ServerMissing as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _silent_log() -> Iterator[None]:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _no_place_is_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
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
def app(
    engine: FakeEngine,
    authenticator: FakeAuthenticator,
    metrics: Metrics,
    limiter: Limiter,
    journal: Journal,
    sessions: Sessions,
    tmp_path_factory: pytest.TempPathFactory,
) -> Starlette:
    folder = tmp_path_factory.mktemp("data")
    settings = Settings(data_dir=folder, max_body_bytes=MAX_BODY_BYTES, embeddings={"tiny": "mean"})
    given = {"metrics": metrics, "limiter": limiter, "journal": journal, "sessions": sessions}
    return create_app(settings, services_with(settings.data_dir, engine, authenticator, **given))


@pytest.fixture
def client(app: Starlette) -> Iterator[TestClient]:
    """With the standard tenant's key. An exception that reaches the server fails the test."""
    with TestClient(app, headers=AUTHORISED) as client:
        yield client


@dataclass(frozen=True)
class Server:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def server(app: Starlette) -> Iterator[Server]:
    """The real server on a free port, in a thread of its own."""
    with serving(app) as server:
        yield server


@contextlib.contextmanager
def serving(app: Starlette, **options: float) -> Iterator[Server]:
    """The same with other bounds on its connections."""
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        uvicorn_server = TurnpikeServer(app, Drain(), delay_s=0, deadline_s=10, on_ready=lambda: None, **options)
        thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listener]})
        thread.start()
        until(lambda: uvicorn_server.started)
        try:
            yield Server(listener.getsockname()[1])
        finally:
            uvicorn_server.should_exit = True
            thread.join(10)


def until(condition, timeout_s: float = 15.0) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
