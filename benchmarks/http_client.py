"""A client that costs little: one completion over HTTP/1.1, streamed, with the time of all that comes.

It shares its machine with the server that it measures, so it parses no more than it needs. Times are those of
`time.perf_counter`, in seconds.
"""

import asyncio
import re
import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

_IDLE_S = 2.0
"""The server closes a connection that was idle for 5 s; ours are given up before that, so that none is closed under
a request."""
_USAGE = re.compile(rb'"completion_tokens":(\d+)')


@dataclass(slots=True)
class Outcome:
    """One request. `due_s` is when it should have been sent, `sent_s` when it was.

    `events_s` has the time of each event with text in it, `tokens` is what the answer's usage says. A refusal has
    neither, and `retry_after_ms` and `answered_s`. `status` is 0 where there was no answer.
    """

    name: str
    due_s: float
    sent_s: float = 0.0
    answered_s: float = 0.0
    ended_s: float = 0.0
    status: int = 0
    retry_after_ms: int | None = None
    events_s: list[float] = field(default_factory=list)
    tokens: int = 0
    attempt: int = 1

    @property
    def finished(self) -> bool:
        return self.status == 200 and self.tokens > 0

    @property
    def first_token_s(self) -> float:
        return self.events_s[0]


class Question(NamedTuple):
    """A request to send: `name` is free for the caller's use."""

    name: str
    key: str
    body: bytes


class Client:
    """Keeps connections open. Not more careful than it must be: the server is ours and on loopback."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._idle: deque[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = deque()

    async def ask(self, question: Question, due_s: float, attempt: int = 1) -> Outcome:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {self._host}\r\nauthorization: Bearer {question.key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(question.body)}\r\n\r\n"
        )
        outcome = Outcome(question.name, due_s, attempt=attempt)
        await self._exchange(head.encode() + question.body, outcome)
        return outcome

    async def get(self, path: str) -> Outcome:
        outcome = Outcome(path, time.perf_counter())
        await self._exchange(f"GET {path} HTTP/1.1\r\nhost: {self._host}\r\n\r\n".encode(), outcome)
        return outcome

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[2].close()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The one that was in use last, or a new one."""
        while self._idle and self._idle[0][0] < time.perf_counter() - _IDLE_S:
            self._idle.popleft()[2].close()
        if self._idle:
            return self._idle.pop()[1:]
        return await asyncio.open_connection(self._host, self._port)

    async def _exchange(self, request: bytes, outcome: Outcome) -> None:
        reader, writer = await self._connection()
        outcome.sent_s = time.perf_counter()
        writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            outcome.answered_s = time.perf_counter()
            headers = _headers(head)
            outcome.status = int(head[9:12])
            if "retry-after-ms" in headers:
                outcome.retry_after_ms = int(headers["retry-after-ms"])
            if "content-length" in headers:
                await reader.readexactly(int(headers["content-length"]))
            else:
                await _read_events(reader, outcome)
        except (ConnectionError, asyncio.IncompleteReadError):
            outcome.status = 0
            writer.close()
        else:
            self._idle.append((time.perf_counter(), reader, writer))
        outcome.ended_s = time.perf_counter()


async def _read_events(reader: asyncio.StreamReader, outcome: Outcome) -> None:
    """Server-sent events in chunked encoding, whose framing never splits what is looked for here: the server sends
    whole events."""
    rest = b""
    while not rest.endswith(b"0\r\n\r\n"):
        data = await reader.read(1 << 16)
        if not data:
            raise ConnectionError
        now_s = time.perf_counter()
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            if b'"text":"' in event and b'"text":""' not in event:
                outcome.events_s.append(now_s)
            elif (usage := _USAGE.search(event)) is not None:
                outcome.tokens = int(usage[1])


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:-2]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def completion(prompt: str, output_tokens: int) -> bytes:
    """The body of a request whose answer has exactly `output_tokens` tokens."""
    return orjson.dumps(
        {
            "model": "smollm2",
            "prompt": prompt,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
