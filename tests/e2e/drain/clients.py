"""Clients that send requests until no server listens, and keep their own record of the answers."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any

import orjson

from gateway.http.errors import SHUTTING_DOWN, shutting_down
from tests.e2e.kill.clients import events_of

MODEL = "tiny"
CLIENTS = 12
LONGEST_ANSWER = 100
PAUSE_S = 0.05
"""After a refusal."""
CONNECTION_S = 60.0
DRAINING = SHUTTING_DOWN
UNREAD_S = 0.5
"""A request sent in these seconds before the signal may be unread when the listener closes."""


class Dialect(StrEnum):
    """By its path."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    MESSAGES = "/v1/messages"


@dataclass(slots=True)
class Seen:
    """One request, as its client saw it.

    `tokens`: of the answer, as far as the stream reported them; None where the dialect reports them only at the end.
    `usage`: (prompt, answer), reported at the end. `error`: the code of an error, or its type where the dialect has no
    codes. `ended`: it has the end of a stream, or a whole body. `late`: begun after the signal, or not `UNREAD_S`
    before it.
    """

    dialect: Dialect
    streamed: bool
    begun_s: float
    late: bool = False
    status: int = 0
    request_id: str = ""
    tokens: int | None = 0
    usage: tuple[int, int] | None = None
    error: str = ""
    ended: bool = False


@dataclass(slots=True)
class Crowd:
    """All clients of one cycle. `keys`: of tenants."""

    port: int
    keys: Sequence[str]
    signalled_s: float = inf

    async def ask(self, seed: int) -> list[Seen]:
        """Requests one after another from each client, until the gateway is gone; then what they saw."""
        seen: list[Seen] = []
        await asyncio.gather(*(self._client(n, random.Random(f"{seed}-{n}"), seen) for n in range(CLIENTS)))
        for each in seen:
            each.late = each.begun_s > self.signalled_s - UNREAD_S
        return seen

    async def _client(self, number: int, rng: random.Random, seen: list[Seen]) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except ConnectionError:
                return
            record = Seen(rng.choice(list(Dialect)), rng.random() < 0.7, time.monotonic())
            record.tokens = 0 if record.streamed and record.dialect is not Dialect.MESSAGES else None
            seen.append(record)
            body = orjson.dumps(_asked(record, number, rng))
            try:
                async with asyncio.timeout(CONNECTION_S):
                    writer.write(_head(record.dialect, self.keys[number % len(self.keys)], len(body)) + body)
                    await _read(reader, record)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass  # what was read before stands
            finally:
                writer.close()
            if record.status != 200:
                await asyncio.sleep(PAUSE_S)


def _asked(record: Seen, number: int, rng: random.Random) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": rng.randint(1, LONGEST_ANSWER), "stream": record.streamed}
    text = "x" * rng.randint(1, 60)
    if record.dialect is Dialect.COMPLETIONS:
        asked["prompt"] = text
    else:
        asked["messages"] = [{"role": "user", "content": text}]
    if record.streamed and record.dialect is not Dialect.MESSAGES:
        asked["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if record.dialect is Dialect.CHAT and rng.random() < 0.5:
        asked["session_id"] = f"session-{number}"
    return asked


def _head(path: str, key: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


async def _read(reader: asyncio.StreamReader, record: Seen) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    record.status = int(head[9:12])
    if record.streamed and record.status == 200:
        async for event in events_of(reader):
            _take_event(event, record)
        return
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    body = orjson.loads(await reader.readexactly(length))
    if record.status != 200:
        record.error = _code(body)
        return
    record.request_id, record.usage, record.ended = body["id"], _usage(body["usage"]), True


def _take_event(data: bytes, record: Seen) -> None:
    if data == b"[DONE]":
        record.ended = True
        return
    told = orjson.loads(data)
    if told.get("error"):
        record.error = _code(told)
    elif record.dialect is Dialect.MESSAGES:
        if told["type"] == "message_start":
            record.request_id = told["message"]["id"]
        elif told["type"] == "message_delta":
            record.usage = _usage(told["usage"])
        record.ended = told["type"] == "message_stop"
    else:
        record.request_id = told["id"]
        record.usage = _usage(told["usage"])
        record.tokens = record.usage[1]


def _code(body: dict[str, Any]) -> str:
    """Anthropic's errors have no code: the message says what the code of the others says."""
    error = body["error"]
    code: str = error["type"] if "code" not in error else error["code"]
    return DRAINING if shutting_down().message in error["message"] else code


def _usage(usage: dict[str, Any]) -> tuple[int, int]:
    """(prompt, answer), by OpenAI's names or by Anthropic's."""
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["completion_tokens"]
    cached = usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    return usage["input_tokens"] + cached, usage["output_tokens"]
