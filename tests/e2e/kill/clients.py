"""Clients that keep their own record of what they received, to the end of every connection."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum

import orjson

from tests.e2e.kill.zygote import MODEL

CLIENTS = 16
LONGEST_PROMPT = 60
LONGEST_ANSWER = 120
CONNECTION_S = 30.0


class Manner(StrEnum):
    STREAMED = "streamed"
    WHOLE = "whole"
    ABANDONED = "abandoned"
    """Streamed, until its client has enough and says so: it shuts its side, and reads on to the server's end."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Whole answers have a key of their own, which identifies one that no client received."""

    streamed: str
    whole: str


@dataclass(slots=True)
class Received:
    """One request, as its client saw it. `prompt_tokens` and `choices` are what was asked.

    `arrivals_s` has the moment of each token, `over_s` that of the connection's end, both monotonic. `ended`: it has
    the end of a stream, or a whole body. `request_id` is empty where not even that arrived.
    """

    manner: Manner
    prompt_tokens: int
    choices: int
    request_id: str = ""
    status: int = 0
    arrivals_s: list[float] = field(default_factory=list)
    over_s: float = 0.0
    ended: bool = False
    left: bool = False
    usage: dict[str, int] | None = None

    @property
    def tokens(self) -> int:
        return len(self.arrivals_s)


async def load(port: int, keys: Keys, seed: int) -> list[Received]:
    """Requests one after another from each client, until the gateway is gone; then what they saw."""
    received: list[Received] = []
    await asyncio.gather(*(_client(port, keys, random.Random(f"{seed}-{n}"), received) for n in range(CLIENTS)))
    return received


async def _client(port: int, keys: Keys, rng: random.Random, received: list[Received]) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            return
        manner = rng.choices(list(Manner), (5, 3, 2))[0]
        prompt = "x" * rng.randint(1, LONGEST_PROMPT)
        record = Received(manner, 1 + len(prompt), rng.choice((1, 1, 2)))
        received.append(record)
        body = orjson.dumps(
            {
                "model": MODEL,
                "prompt": prompt,
                "n": record.choices,
                "max_tokens": rng.randint(1, LONGEST_ANSWER),
                "stream": manner is not Manner.WHOLE,
            }
            | ({} if manner is Manner.WHOLE else {"stream_options": {"include_usage": True}})
        )
        enough = rng.randint(1, LONGEST_ANSWER) if manner is Manner.ABANDONED else None
        key = keys.whole if manner is Manner.WHOLE else keys.streamed
        try:
            async with asyncio.timeout(CONNECTION_S):
                writer.write(_head(key, len(body)) + body)
                await _read(reader, writer, record, enough)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # what was read before stands
        finally:
            record.over_s = time.monotonic()
            writer.close()


def _head(key: str, length: int) -> bytes:
    return (
        f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


async def _read(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: Received, enough: int | None
) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    record.status = status
    if record.manner is Manner.WHOLE or status != 200:
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        _take_whole(await reader.readexactly(length), record)
        return
    async for event in events_of(reader):
        _take_event(event, record)
        if enough is not None and record.tokens >= enough and not record.left:
            record.left = True
            writer.write_eof()


async def events_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The data of each event that came whole, to the connection's end. The framing of chunks never splits an event, as
    the server sends whole ones."""
    rest = b""
    while data := await reader.read(1 << 16):
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            yield event.partition(b"data: ")[2]


def _take_event(data: bytes, record: Received) -> None:
    if data == b"[DONE]":
        record.ended = True
        return
    if not data:
        return
    chunk = orjson.loads(data)
    if "error" in chunk:
        return
    record.request_id = chunk["id"]
    record.arrivals_s += [time.monotonic()] * sum(len(choice["text"]) for choice in chunk["choices"])
    record.usage = chunk["usage"] and _flat(chunk["usage"])


def _take_whole(body: bytes, record: Received) -> None:
    if record.status != 200:
        return
    answer = orjson.loads(body)
    record.request_id = answer["id"]
    record.arrivals_s += [time.monotonic()] * sum(len(choice["text"]) for choice in answer["choices"])
    record.usage = _flat(answer["usage"])
    record.ended = True


def _flat(usage: dict) -> dict[str, int]:
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "completion_tokens": usage["completion_tokens"],
    }
