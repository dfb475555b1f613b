"""Clients that stop reading, over a real socket and the real engine: it pauses their requests, and resumes with the
same text when they read again."""

import contextlib
import socket
import time

import orjson
import pytest

from engine.engine import Engine
from engine.runtime import output_stream
from engine.scheduling.stats import SchedulerStats
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.metering.event import Ending
from gateway.metering.journal.journal import Journal
from tests.support.gateway import KEY, FakeAuthenticator, serving, until
from tests.support.services import services_with
from tests.support.tiny_app import tiny_engine
from tests.support.tiny_models import make_checkpoint
from tests.support.usage_events import event_of

ANSWER_TOKENS = 400
UNREAD, FEW = 24, 8
"""In place of the real bounds, so that short answers are long."""
PART_BYTES = 40_000
"""Bytes that a slow client reads at a time."""
STEPS_UNDER_WAY = 8
"""Maximum number of steps between the event loop's call to pause and the pause in the engine."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def engine(folder, monkeypatch):
    monkeypatch.setattr(output_stream, "MAX_UNREAD_DELTAS", UNREAD)
    monkeypatch.setattr(output_stream, "FEW_UNREAD_DELTAS", FEW)
    return tiny_engine(folder)


@pytest.fixture
def app(engine, journal, tmp_path):
    settings = Settings(data_dir=tmp_path)
    return create_app(settings, services_with(tmp_path, engine, FakeAuthenticator(), journal=journal))


@contextlib.contextmanager
def asking(port: int, **fields):
    """A client that has asked for a long answer in large events, and has read nothing."""
    fields = {"max_tokens": ANSWER_TOKENS, "top_logprobs": 20} | fields
    body = orjson.dumps(
        {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True, "seed": 7, "logprobs": True}
        | {"ignore_eos": True}
        | fields
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(head.encode() + body)
        yield client


def read(client: socket.socket, answer: bytes = b"") -> list[str]:
    """The text of each choice, to the end; `answer` is what was read before."""
    while not answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        data = client.recv(1 << 14)
        assert data, answer[-300:]
        answer += data
    events = [line.removeprefix(b"data: ") for line in answer.split(b"\n") if line.startswith(b"data: {")]
    chunks = [orjson.loads(event) for event in events]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return [
        "".join(choice["delta"].get("content") or "" for choice in choices if choice["index"] == index)
        for index in sorted({choice["index"] for choice in choices})
    ]


def read_now_and_then(client: socket.socket, engine: Engine, times: int) -> list[str]:
    """The same, by a client that waits `times` times for a pause and then reads `PART_BYTES` or more."""
    answer = b""
    for _ in range(times):
        until(lambda: stats(engine).paused > 0, timeout_s=30)
        already = len(answer)
        while stats(engine).paused or len(answer) - already < PART_BYTES:
            answer += client.recv(1 << 13)
    return read(client, answer)


def stats(engine: Engine) -> SchedulerStats:
    return engine.stats()["tiny"]


def at_rest(engine):
    """The stats once no step is computed any more: a pause ends where what was sent still finds room on its way."""
    deadline, before = time.monotonic() + 30, stats(engine)
    while True:
        time.sleep(0.3)
        after = stats(engine)
        if after.paused == 2 and after.steps_total == before.steps_total:
            return after
        assert time.monotonic() < deadline, after
        before = after


def test_nothing_is_computed_for_a_client_that_does_not_read(app, engine):
    with serving(app) as server, asking(server.port) as client, asking(server.port) as other:
        after = at_rest(engine)
        assert (after.paused, after.running, after.waiting) == (2, 0, 0)
        assert after.free_blocks == after.num_blocks
        assert after.steps_total < ANSWER_TOKENS
        with asking(server.port, max_tokens=5) as third:
            assert read(third)
        assert stats(engine).paused == 2
        assert read(client) == read(other)
        assert stats(engine).paused == 0


@pytest.mark.parametrize("fields", [{}, {"n": 3, "temperature": 1.3, "presence_penalty": 0.5}])
def test_pauses_do_not_change_the_text(app, engine, monkeypatch, fields):
    with serving(app) as server:
        with asking(server.port, **fields) as client:
            paused = read_now_and_then(client, engine, times=3)
        assert stats(engine).pauses_total >= 3
        monkeypatch.setattr(output_stream, "MAX_UNREAD_DELTAS", 10_000)
        pauses = stats(engine).pauses_total
        with asking(server.port, **fields) as client:
            assert read(client) == paused
        assert stats(engine).pauses_total == pauses


def test_what_is_held_for_it_is_bounded(app, engine, monkeypatch):
    """Wherever a token is: with the engine, in a write that waits, in a buffer of this process or of the kernel."""
    held = []
    push = output_stream.OutputStream.push

    def pushing(self, delta):
        push(self, delta)
        held.append(len(self._ready))

    monkeypatch.setattr(output_stream.OutputStream, "push", pushing)
    with serving(app) as server, asking(server.port) as client:
        read_now_and_then(client, engine, times=3)
    assert UNREAD <= max(held) <= UNREAD + STEPS_UNDER_WAY


def test_it_is_cancelled_when_it_has_not_read_for_long(app, engine, journal: Journal):
    with serving(app, stall_seconds=2) as server, asking(server.port):
        until(
            lambda: stats(engine).pauses_total == 1, timeout_s=30
        )  # how long it stands still is not this thread's to see
        event = event_of(journal)
        assert stats(engine).paused == 0
        assert 0 < event.paused_ms <= stats(engine).paused_ns_total // 1_000_000
    assert event.finish_reason is Ending.CANCELLED
    assert 0 < event.completion_tokens < ANSWER_TOKENS
    assert 0 < event.undelivered_tokens <= UNREAD + 2 * output_stream.MAX_BATCH_TOKENS
