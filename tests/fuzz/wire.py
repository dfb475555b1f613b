"""Requests over sockets, one for each connection, without a client library's good manners."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

ANSWER_SECONDS = 60.0

_ENDS = (b"data: [DONE]", b"event: message_stop\n", b"event: response.completed\n", b"event: response.incomplete\n")
"""Beginnings of the last event of a stream that ended well."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request. It hangs up when `read_bytes` of the answer are there; None: when all are."""

    method: str
    target: str
    body: bytes | None = None
    read_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def events(self) -> list[Any]:
        """The data of each of a stream's, without what says that it has ended well. Raises: ValueError."""
        *events, rest = self.body.split(b"\n\n")
        if rest or not events or not events.pop().startswith(_ENDS):
            raise ValueError("the stream does not end as it should")
        data = [event.splitlines()[-1] for event in events if not event.startswith(b":")]
        return [orjson.loads(line.removeprefix(b"data: ")) for line in data]

    def texts(self) -> list[str]:
        """Of each choice, whole or streamed. Raises: ValueError, KeyError."""
        chunks = self.events() if self.is_stream else [orjson.loads(self.body)]
        texts: dict[int, str] = {}
        for choice in [choice for chunk in chunks for choice in chunk["choices"]]:
            said = choice.get("delta") or choice.get("message") or choice
            text = said.get("content", said.get("text")) or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + text
        return [texts[index] for index in sorted(texts)]


async def exchange(port: int, key: str, sent: Sent) -> Answer | None:
    """The answer; None where this side hung up.

    Raises:
        ConnectionError, ValueError: what came is no answer.
        TimeoutError: there is none.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            writer.write(_head(key, sent) + (sent.body or b""))
            if sent.read_bytes is not None:
                await reader.read(sent.read_bytes)
                return None
            return _answer(await reader.read(), has_body=sent.method != "HEAD")
    finally:
        writer.close()


def _head(key: str, sent: Sent) -> bytes:
    lines = [f"{sent.method} {sent.target} HTTP/1.1", "host: x", f"authorization: Bearer {key}", "connection: close"]
    if sent.body is not None:
        lines += ["content-type: application/json", f"content-length: {len(sent.body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _answer(data: bytes, *, has_body: bool) -> Answer:
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        raise ValueError(f"{data[:100]!r} is no answer")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    if headers.get("transfer-encoding") == "chunked":
        body = _unchunked(body)
    elif has_body and len(body) != int(headers["content-length"]):
        raise ValueError("the answer is cut short")
    return Answer(int(status.split()[1]), headers, body)


def _unchunked(data: bytes) -> bytes:
    """Raises: ValueError, it is cut short."""
    pieces, start = [], 0
    while True:
        end = data.index(b"\r\n", start)
        size = int(data[start:end], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(data[end + 2 : end + 2 + size])
        start = end + 4 + size
