"""The worker's side: calls whose preparation is not over when something else happens to them.

The seeds are those of `python -m tests.whole` that have shown a fault.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import EngineError
from engine.grammar.spec import GrammarSpec
from engine.grammar.tenant_queues import QueueFull
from engine.request import STANDARD, Request, SamplingParams
from engine.runtime.submission import Submission
from engine.workers import server
from engine.workers.messages import (
    Abort,
    Aborted,
    Accepted,
    FromWorker,
    Pause,
    Refused,
    Resume,
    Submit,
    decode_from_worker,
)
from engine.workers.server import WorkerServer


class Core:
    """An engine that records what it is asked to do."""

    def __init__(self) -> None:
        self.alive = True
        self.asked: list[tuple[str, list[str]]] = []

    def submit(self, model: str, requests: Sequence[Request], sink: Any) -> None:
        if not self.alive:
            raise EngineError("the engine is closed")
        self.asked.append(("submit", [each.id for each in requests]))

    def pause(self, model: str, request_ids: Sequence[str]) -> None:
        self.asked.append(("pause", list(request_ids)))

    def resume(self, model: str, request_ids: Sequence[str]) -> None:
        self.asked.append(("resume", list(request_ids)))

    def abort(self, model: str, request_ids: Sequence[str], done: Callable[[], None]) -> None:
        self.asked.append(("abort", list(request_ids)))
        done()


class Grammars:
    """A compiler whose one result a test sets, with a queue that is full at the first `full` calls."""

    def __init__(self, full: int = 0) -> None:
        self.compiled: Future[Any] = Future()
        self.full = full

    def compile(self, spec: GrammarSpec, tenant: str) -> "Future[Any]":
        if self.full:
            self.full -= 1
            raise QueueFull("too many")
        return self.compiled


class Writer:
    def __init__(self) -> None:
        self.sent: list[FromWorker] = []

    def send(self, payload: bytes) -> bool:
        self.sent.append(decode_from_worker(payload))
        return True


class Worker:
    """A server whose next call, number 1 for the request `a`, has a grammar to compile."""

    def __init__(self, *, full: int = 0, is_replay: bool = False) -> None:
        self.core, self.grammars, self.writer = Core(), Grammars(full), Writer()
        text = SimpleNamespace(dialect=SimpleNamespace(reasoning=None))
        served: Any = SimpleNamespace(
            name="m", grammars=self.grammars, prefix_cache=True, eos_token_ids=(), vocab_size=9, text=text
        )
        core: Any = self.core
        writer: Any = self.writer
        self.server = WorkerServer(core, {"m": served}, writer)
        params = SamplingParams(grammar=GrammarSpec.json_object("response_format"))
        one = Submission(("a",), (0,), [1, 2], 2, params, 8, STANDARD, "", b"")
        self.server.handle(Submit(1, "m", (one,), is_replay))

    async def compile(self) -> None:
        await settle()
        self.grammars.compiled.set_result(SimpleNamespace(matcher=lambda: None))
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_pause_that_precedes_its_request_reaches_the_engine_after_it() -> None:
    """Of a replayed request whose client does not read: seed 42."""
    worker = Worker()
    worker.server.handle(Pause("m", ["a"]))
    await worker.compile()
    assert worker.core.asked[-2:] == [("submit", ["a"]), ("pause", ["a"])]
    assert worker.writer.sent == [Accepted(1)]


async def test_a_resume_cancels_such_a_pause() -> None:
    worker = Worker()
    worker.server.handle(Pause("m", ["a"]))
    worker.server.handle(Resume("m", ["a"]))
    await worker.compile()
    assert worker.core.asked[-1] == ("submit", ["a"])


async def test_a_call_that_is_aborted_while_it_is_prepared_is_answered() -> None:
    """Both the call and the abort are: seed 16."""
    worker = Worker()
    await settle()
    worker.server.handle(Abort(2, "m", ["a"]))
    await worker.compile()
    aborted, refused = worker.writer.sent
    assert isinstance(aborted, Aborted)
    assert aborted.usages["a"].completion_tokens == 0
    assert isinstance(refused, Refused)
    assert refused.call == 1
    assert worker.core.asked == [("abort", ["a"])]


async def test_a_call_that_is_aborted_before_its_preparation_begins_is_answered() -> None:
    worker = Worker()
    worker.server.handle(Abort(2, "m", ["a"]))
    await settle()
    assert {type(each) for each in worker.writer.sent} == {Aborted, Refused}


async def test_an_engine_that_has_ended_refuses_no_call() -> None:
    """The client submits it to the next worker."""
    worker = Worker()
    worker.core.alive = False
    await worker.compile()
    assert worker.writer.sent == []


async def test_a_replay_waits_for_a_place_in_the_queue_of_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream has begun, and its tenant's other streams are replayed with it."""
    monkeypatch.setattr(server, "GRAMMAR_SECONDS", 0.0)
    worker = Worker(full=3, is_replay=True)
    await worker.compile()
    assert worker.writer.sent == [Accepted(1)]


async def test_a_new_call_is_refused_where_that_queue_is_full() -> None:
    worker = Worker(full=1)
    await worker.compile()
    (refused,) = worker.writer.sent
    assert isinstance(refused, Refused)
    assert refused.kind == "TooManyGrammars"


async def test_a_waiting_replay_ends_with_its_abort() -> None:
    worker = Worker(full=10**6, is_replay=True)
    await settle()
    worker.server.handle(Abort(2, "m", ["a"]))
    await settle()
    assert {type(each) for each in worker.writer.sent} == {Aborted, Refused}
    assert worker.server._preparing == {}


async def test_nothing_of_a_call_is_left() -> None:
    worker = Worker()
    worker.server.handle(Pause("m", ["a"]))
    worker.server.handle(Abort(2, "m", ["a"]))
    await settle()
    assert [worker.server._requests, worker.server._preparing, worker.server._paused] == [{}, {}, set()]
