"""A client that takes nothing: how much of an answer is counted as sent to it, and that it is given up."""

import asyncio
import contextlib
import socket
import struct
import threading
import time

import orjson
import pytest
from uvicorn.server import ServerState

from engine.runtime.output_stream import MAX_BATCH_TOKENS
from gateway.http.drain import Drain
from gateway.http.errors import ClientGone
from gateway.metering.event import Ending
from gateway.process.connection import WRITE_BUFFER_BYTES, Connection, server_config
from gateway.process.listener import SEND_BUFFER_BYTES
from tests.support.gateway import BODY, KEY, Server, serving, until
from tests.support.usage_events import event_of


@pytest.fixture
def engine(engine):
    """With an answer that no buffer holds."""
    engine.models = {"tiny": type(engine.models["tiny"])("tiny", 10_000_000)}
    engine.reply = "x" * 5_000_000
    return engine


@contextlib.contextmanager
def client_of(server: Server, **fields):
    """The connection of a client that asks and reads nothing."""
    body = orjson.dumps(BODY | {"stream": True} | fields)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head.encode() + body)
        yield client


@pytest.fixture
def stalled(server, engine):
    """A client that does not read, after the engine has stopped generating for it."""
    with client_of(server) as client:
        until(lambda: engine.generated > 0)
        seen = -1
        while engine.generated != seen:
            seen = engine.generated
            time.sleep(0.2)
        yield client


async def test_what_is_not_handed_to_the_transport_is_said() -> None:
    """uvicorn drops it silently. The end of a body without bytes loses nothing."""
    outcomes: list[str] = []
    began, left = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            return
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            began.set()
            await left.wait()
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            outcomes.append("nothing to write")
            while len(outcomes) < 1000:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                outcomes.append("written")
                await asyncio.sleep(0.01)
        except ClientGone:
            outcomes.append("gone")

    config = server_config(app, Drain())
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: config.http_protocol_class(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(30):
            await began.wait()
            writer.transport.abort()
            while state.connections:
                await asyncio.sleep(0.01)
            left.set()
            while "gone" not in outcomes:
                await asyncio.sleep(0.01)
    assert outcomes == ["nothing to write", "gone"], "and nothing counts as written"


def test_what_a_client_never_took_is_billed_up_to_a_bound(stalled, journal):
    arrived = stalled.recv(1 << 20, socket.MSG_PEEK)
    received = arrived.count(b'"content":"x"')
    event_bytes = len(arrived) / received
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stalled.close()
    event = event_of(journal)
    assert event.finish_reason is Ending.CANCELLED
    unreceived_bytes = (event.completion_tokens - received) * event_bytes
    one_write = MAX_BATCH_TOKENS * event_bytes
    assert unreceived_bytes <= 2 * SEND_BUFFER_BYTES + WRITE_BUFFER_BYTES + one_write


def test_one_that_takes_nothing_is_given_up_and_billed_for_what_was_written(app, engine, journal, monkeypatch):
    written = bytearray()
    connection_made = Connection.connection_made

    def recording(self, transport) -> None:
        connection_made(self, transport)
        self.transport = _Recording(transport, written)

    monkeypatch.setattr(Connection, "connection_made", recording)
    with serving(app, stall_seconds=0.3) as server, client_of(server):
        until(lambda: engine.live)
        until(lambda: not engine.live)
        event = event_of(journal)
    assert event.finish_reason is Ending.CANCELLED
    assert event.completion_tokens == written.count(b'"content":"x"') > 0


def test_one_that_leaves_the_end_of_an_answer_is_given_up(app, engine, journal, monkeypatch):
    engine.reply = "x" * 5000
    lost, connection_lost = threading.Event(), Connection.connection_lost

    def losing(self, exc) -> None:
        connection_lost(self, exc)
        lost.set()

    monkeypatch.setattr(Connection, "connection_lost", losing)
    with serving(app, stall_seconds=0.3) as server, client_of(server, stream=False, logprobs=True) as client:
        assert event_of(journal).finish_reason is Ending.STOP
        assert lost.wait(5)
        left = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert left.startswith(b"HTTP/1.1 200 ")
    assert not left.endswith(b"}")


def test_one_that_is_slow_gets_everything(app, engine):
    engine.reply = "x" * 1500
    with serving(app, stall_seconds=2.0) as server, client_of(server) as client:
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            time.sleep(0.001)
            answer += client.recv(4096)
    assert answer.count(b'"content":"x"') == 1500


@pytest.mark.parametrize(
    ("trusted", "connects", "client"),
    [
        ((), "127.0.0.1", "127.0.0.1"),
        (("10.0.0.0/8",), "127.0.0.1", "127.0.0.1"),
        (("10.0.0.0/8",), "10.1.2.3", "9.9.9.9"),
        (("127.0.0.1/32",), "127.0.0.1", "9.9.9.9"),
    ],
)
async def test_only_named_proxies_say_who_the_client_is(anyio_backend, trusted, connects, client):
    seen = []

    async def app(scope, receive, send) -> None:
        seen.append(scope["client"][0])

    config = server_config(app, Drain(), trusted_proxies=trusted)
    config.load()
    headers = [(b"x-forwarded-for", b"9.9.9.9")]
    await config.loaded_app({"type": "http", "client": (connects, 1), "headers": headers}, None, None)
    assert seen == [client]


class _Recording:
    """A transport that keeps what is written to it."""

    def __init__(self, transport, written: bytearray) -> None:
        self._transport = transport
        self._written = written

    def __getattr__(self, name: str):
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written += data
        self._transport.write(data)
