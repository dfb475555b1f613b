"""The real server and engine with a tiny model, and all that requests may not leave behind."""

import contextlib
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import structlog

from engine.config import EngineConfig
from engine.engine import Engine
from engine.runtime import model_loading
from engine.speculation.policy import FixedDepth
from gateway.admission import Limiter, MemoryStore
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.metering.journal.journal import Journal
from gateway.process.listener import bind
from gateway.process.server import Server
from gateway.sessions import Sessions
from gateway.sessions.memory import MemorySessionStore
from gateway.tenancy.limits import Limits, ScopedLimits, ScopeKind
from gateway.tenancy.records import Principal
from tests.support.services import services_with
from tests.support.tiny_models import make_checkpoint

KEY = "tp-standard"
WINDOW = 192
"""Tokens: so that no mutant takes long."""
MAX_BODY_BYTES = 512 * 1024
MAX_WAIT_S = 3600
"""None is turned away, however slow the machine."""
DRAFT_DEPTH = 3
AMPLE = Limits(requests_per_minute=10**9, tokens_per_minute=10**12, concurrent=10**6, nanodollars_per_month=10**15)


class OneKey:
    """One tenant, with limits that are never reached: what is held against them can be seen."""

    _limits = (ScopedLimits(ScopeKind.TENANT, "", AMPLE),)
    _principal = Principal("tenant-1", "acme", "standard", "pubid1", limits=_limits)

    async def authenticate(self, presented: str) -> Principal:
        return self._principal

    def why_ended(self, public_id: str) -> None:
        """Its key stays."""

    async def aclose(self) -> None:
        pass


@dataclass(frozen=True)
class Served:
    """A running server."""

    port: int
    engine: Engine
    limits: MemoryStore
    sessions: MemorySessionStore
    journal_path: Path
    server: Server

    def left_over(self) -> dict[str, int]:
        """Counts of held resources, by name; all are 0 when no request runs."""
        stats = self.engine.stats().values()
        with contextlib.closing(sqlite3.connect(self.journal_path)) as journal:
            [(open_requests,)] = journal.execute("SELECT count(*) FROM open_requests")
        return {
            "requests that run": sum(each.running for each in stats),
            "requests that wait": sum(each.waiting for each in stats),
            "requests that are paused": sum(each.paused for each in stats),
            "blocks": sum(each.num_blocks - each.free_blocks for each in stats),
            "holds": len(self.limits._open),
            "turns of sessions": sum(bool(each.owner) for each in self.sessions._sessions.values()),
            "open requests in the journal": open_requests,
            "connections": len(self.server.server_state.connections),
            "tasks": len(self.server.server_state.tasks),
        }

    def wait_until_idle(self, timeout_s: float = 10.0) -> dict[str, int]:
        """Resources still held at the timeout; empty if none is. Checks the stores' invariants on the way."""
        deadline = time.monotonic() + timeout_s
        while held := {name: count for name, count in self.left_over().items() if count}:
            if time.monotonic() > deadline:
                return held
            time.sleep(0.02)
        self.limits.check()
        self.sessions.check()
        return {}


def open_files() -> Counter[str]:
    """Of this process, in which client and server are, by kind: `socket`, `pipe`, or a path."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            links.append(os.readlink(f"/proc/self/fd/{number}").partition(":[")[0])
    return Counter(links)


@contextlib.contextmanager
def serving(folder: Path, *, window: int = WINDOW) -> Iterator[Served]:
    """A server with the same model twice: for `tiny`, `twin` drafts all the time, be it worth it or not."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    checkpoint = make_checkpoint(folder / "model", "llama", max_position_embeddings=window)
    config = EngineConfig(
        dtype="float32",
        device="cpu",
        kv_cache_bytes=2 * 2**20,
        threads=1,
        max_model_len=window,
        drafts={"tiny": "twin"},
    )
    with mock.patch.object(model_loading, "DepthController", return_value=FixedDepth(DRAFT_DEPTH)):
        engine = Engine.load({"tiny": checkpoint, "twin": checkpoint}, config)
    limits, sessions = MemoryStore(), MemorySessionStore()
    journal = Journal(folder / "journal.db", interval_ms=5, min_free_bytes=0)
    services = services_with(
        folder, engine, OneKey(), limiter=Limiter(limits), sessions=Sessions(sessions, wait_s=0.2), journal=journal
    )
    settings = Settings(data_dir=folder / "data", max_body_bytes=MAX_BODY_BYTES, max_wait_s=MAX_WAIT_S)
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        server = Server(create_app(settings, services), services.drain, delay_s=0, deadline_s=10, on_ready=lambda: None)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            _until(lambda: server.started)
            port = listener.getsockname()[1]
            yield Served(port, engine, limits, sessions, folder / "journal.db", server)
        finally:
            server.should_exit = True
            thread.join(30)
            structlog.reset_defaults()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.01)
