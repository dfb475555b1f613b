"""Streams over a real socket: pace, hanging up, slow readers, failures half-way, shutdown."""

import asyncio
import contextlib
import http.client
import socket
import struct
import time
from unittest.mock import ANY

import orjson
import pytest

from gateway.http import json_body as json_body_module
from tests.support.gateway import BODY, CHAT, HEADERS, until


@pytest.fixture
def post(server):
    """Sends requests without waiting for answers, each on a connection of its own."""
    with contextlib.ExitStack() as connections:

        def post(**fields) -> http.client.HTTPConnection:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            connections.callback(connection.close)
            connection.request("POST", CHAT, orjson.dumps(BODY | fields), HEADERS)
            return connection

        yield post


def hang_up(connection: http.client.HTTPConnection, *, reset: bool) -> None:
    if reset:
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.sock.close()


def read(connection: http.client.HTTPConnection) -> bytes:
    with connection.getresponse() as response:
        assert response.status == 200
        return response.read()


def answers(post) -> None:
    assert orjson.loads(read(post()))["choices"][0]["message"]["content"]


def test_deltas_arrive_while_the_engine_works(post, engine):
    engine.reply, engine.pace_s = "x" * 20, 0.02
    with post(stream=True).getresponse() as response:
        arrived = [time.monotonic() for line in response if b'"content":"x"' in line]
    assert len(arrived) == 20
    assert arrived[-1] - arrived[0] > 0.2


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_ends_the_work(post, engine, stream, reset):
    engine.reply, engine.pace_s = "x" * 400, 0.01
    connection = post(stream=stream, n=3)
    until(lambda: engine.generated > 10)
    hang_up(connection, reset=reset)
    until(lambda: not engine.live)
    assert engine.generated < 1200
    engine.pace_s = 0
    answers(post)


def test_many_that_hang_up_leave_nothing(post, engine):
    engine.reply, engine.pace_s = "x" * 400, 0.01
    connections = [post(stream=i % 2 == 0) for i in range(40)]
    until(lambda: len(engine.live) == 40)
    for connection in connections:
        hang_up(connection, reset=True)
    until(lambda: not engine.live)
    assert engine.generated < 40 * 400
    engine.pace_s = 0
    answers(post)


def test_hanging_up_in_the_middle_of_a_body(server, post, engine):
    raw = socket.create_connection(("127.0.0.1", server.port))
    raw.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer tp-standard\r\n"
        b'content-type: application/json\r\ncontent-length: 500\r\n\r\n{"model":'
    )
    time.sleep(0.05)
    raw.close()
    answers(post)
    assert len(engine.calls) == 1


def test_a_body_that_does_not_arrive_is_not_waited_for(server, post, monkeypatch):
    monkeypatch.setattr(json_body_module, "MAX_BODY_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer tp-standard\r\n"
            b"content-type: application/json\r\ncontent-length: 5\r\n\r\n{"
        )
        answer = b"".join(iter(lambda: raw.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_timeout"' in answer
    answers(post)


def test_a_connection_goes_on_after_a_body_that_nobody_read(post):
    connection = post(model="x" * 200_000)
    with connection.getresponse() as response:
        assert response.read()
    connection.request("POST", CHAT, b" " * 200_000, {"content-type": "application/json"})
    with connection.getresponse() as response:
        assert response.status == 401
        assert response.read()
    connection.request("POST", CHAT, orjson.dumps(BODY), HEADERS)
    read(connection)


def test_a_failure_half_way_is_the_streams_last_event(post, engine):
    engine.fail_at = 3
    with post(stream=True).getresponse() as response:
        assert response.status == 200
        events = response.read().decode().split("\n\n")
    last = orjson.loads(events[-2].removeprefix("data: "))
    assert last == {"error": {"message": ANY, "type": "server_error", "param": None, "code": "engine_error"}}
    assert not any("[DONE]" in event for event in events)
    assert engine.live == set()


def test_others_go_on_beside_a_long_prompt(post, engine):
    connection = post(messages=[{"role": "user", "content": "x" * 200_000}])
    answers(post)
    with connection.getresponse() as response:
        assert response.status == 400


def test_a_kept_connection_serves_streams_in_turn(post):
    connection = post(stream=True)
    for stream in (False, True):
        read(connection)
        connection.request("POST", CHAT, orjson.dumps(BODY | {"stream": stream}), HEADERS)
    assert read(connection).endswith(b"data: [DONE]\n\n")


def test_an_upgrade_that_nobody_offers_leaves_nobody_waiting(post):
    connection = post()
    read(connection)
    upgrade = {"connection": "Upgrade", "upgrade": "websocket"}
    connection.request("GET", "/v1/models", headers=HEADERS | upgrade)
    assert read(connection)
    connection.request("POST", CHAT, orjson.dumps(BODY), HEADERS | upgrade)
    assert read(connection)


@pytest.mark.parametrize("begun", [True, False])
async def test_what_a_shutdown_cuts_off_is_told_so(app, engine, begun):
    engine.reply = "x" * 100
    engine.pace_s = 0.01 if begun else 60
    engine.start()
    sent = []
    body = [{"type": "http.request", "body": orjson.dumps(BODY | {"stream": True})}]

    async def receive() -> dict:
        if not body:
            await asyncio.sleep(60)
        return body.pop()

    async def send(message: dict) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer tp-standard"), (b"content-type", b"application/json")]
    scope = {"type": "http", "path": CHAT, "method": "POST", "headers": headers, "root_path": "", "query_string": b""}
    task = asyncio.create_task(app(scope, receive, send))
    while not (sent if begun else engine.live):
        await asyncio.sleep(0.01)
    task.cancel()
    await task
    assert engine.live == set()
    assert sent[0]["status"] == (200 if begun else 503)
    assert b"shutting_down" in sent[-1]["body"]
    assert not sent[-1].get("more_body")
