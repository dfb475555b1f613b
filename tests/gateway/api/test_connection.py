"""A client that takes nothing: how much of an answer is counted as sent to it."""

import socket
import struct
import time

import orjson
import pytest

from gateway.api.bounds import MAX_WRITTEN_DELTAS
from gateway.connection import WRITE_BUFFER_BYTES
from gateway.listener import SEND_BUFFER_BYTES
from gateway.metering.event import Ending
from tests.gateway.api.conftest import KEY, until
from tests.gateway.api.test_metering import event_of

BODY = orjson.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True})
REQUEST = (
    f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
    f"content-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n"
).encode() + BODY


@pytest.fixture
def stalled(server, engine):
    """The connection of a client that asked for a long answer and does not read it, when nothing goes on any more."""
    engine.models = {"tiny": type(engine.models["tiny"])("tiny", 10_000_000)}
    engine.reply = "x" * 5_000_000
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(REQUEST)
        until(lambda: engine.generated > 0)
        seen = -1
        while engine.generated != seen:
            seen = engine.generated
            time.sleep(0.2)
        yield client


def test_what_a_client_never_took_is_billed_up_to_a_bound(stalled, journal):
    arrived = stalled.recv(1 << 20, socket.MSG_PEEK)
    received = arrived.count(b'"content":"x"')
    event_bytes = len(arrived) / received
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stalled.close()
    event = event_of(journal)
    assert event.finish_reason is Ending.CANCELLED
    unreceived_bytes = (event.completion_tokens - received) * event_bytes
    one_write = MAX_WRITTEN_DELTAS * event_bytes
    assert unreceived_bytes <= 2 * SEND_BUFFER_BYTES + WRITE_BUFFER_BYTES + one_write
