"""An OpenAI server that does no work, for a proxy to stand before: `python -m benchmarks.sse.upstream PORT`.

It answers each chat completion at once, whole or as a stream of `EVENTS` chunks in one write.
"""

import asyncio
import sys
from typing import cast

import orjson
import uvloop

EVENTS = 20
WORD = " time"
_HEADER = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "weightless"}
_USAGE = {"prompt_tokens": 10, "completion_tokens": EVENTS, "total_tokens": 10 + EVENTS}


def _chunk(delta: dict[str, str], reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: %b\n\n" % orjson.dumps(_HEADER | {"object": "chat.completion.chunk", "choices": [choice]})


def _stream() -> bytes:
    events = b"".join(
        [
            _chunk({"role": "assistant", "content": ""}, None),
            *[_chunk({"content": WORD}, None)] * EVENTS,
            _chunk({}, "length"),
            b"data: [DONE]\n\n",
        ]
    )
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events)


def _whole() -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": WORD * EVENTS}, "finish_reason": "length"}
    body = orjson.dumps(_HEADER | {"object": "chat.completion", "choices": [choice], "usage": _USAGE})
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


STREAM, WHOLE = _stream(), _whole()


class _Answerer(asyncio.Protocol):
    """Not more careful than its one kind of client asks for: a head, and a body of a stated length."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        if not blank:
            return
        stated = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
        length = int(stated or 0)
        if len(body) < length:
            return
        self._received = b""
        streamed = orjson.loads(body).get("stream", False) if length else False
        self._transport.write(STREAM if streamed else WHOLE)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Answerer, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
