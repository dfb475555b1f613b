"""Sends one streamed request to an OpenAI server and records its outcome."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Literal

import aiohttp
import orjson

from gateway.errors import OperatorError
from gateway.tools.bench.chunks import DONE, Malformed, error_code, read_chunk
from gateway.tools.bench.clock import Clock
from gateway.tools.bench.outcome import FINISHED, UNFINISHED, Outcome
from gateway.tools.bench.prompts import Prompt
from gateway.tools.bench.recorder import Recorder
from gateway.tools.bench.sse import EventDecoder, EventTooLarge

Endpoint = Literal["chat", "completions"]

_PATHS: dict[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}
_IDLE_S = 2.0
"""Keep-alive timeout. Servers close connections that are idle for 5 s or more; a shorter timeout avoids sending a
request on a closing connection."""
_LAST_BYTE_S = 1.0
_MAX_ERROR_BYTES = 64 * 1024


class ServerRefuses(OperatorError):
    """The first request failed, so the load test would only measure errors."""


@dataclass(frozen=True, slots=True)
class Target:
    """`url`: the SDKs' base URL, usually ending in /v1."""

    url: str
    model: str
    endpoint: Endpoint
    key: str | None = field(repr=False)
    ignore_eos: bool
    timeout_s: float
    ask_usage: bool = True

    @property
    def path(self) -> str:
        return self.url.rstrip("/") + _PATHS[self.endpoint]

    def body(self, prompt: Prompt) -> bytes:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": prompt.max_tokens,
            "temperature": 0,
            "stream": True,
        }
        if self.ask_usage:
            body["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.endpoint == "chat":
            body["messages"] = prompt.messages or [{"role": "user", "content": prompt.text}]
        else:
            body["prompt"] = prompt.text or "\n".join(str(each.get("content", "")) for each in prompt.messages or ())
        return orjson.dumps(body)


class Client:
    """Keeps an unlimited number of connections, so requests never queue in the client."""

    def __init__(self, target: Target, session: aiohttp.ClientSession, clock: Clock) -> None:
        self.target = target
        self._session = session
        self._clock = clock

    async def ask(self, prompt: Prompt, due_s: float, record: Recorder) -> None:
        """Send a request and record its outcome, also on cancellation."""
        record.begin()
        answer = _Answer(due_s, self._clock)
        ending = UNFINISHED
        try:
            ending = await self._exchange(self.target.body(prompt), answer)
        except TimeoutError:
            ending = "timeout"
        except aiohttp.ClientConnectorError:
            ending = "cannot connect"
        except (aiohttp.ClientError, OSError) as error:
            ending = "connection lost" if answer.pieces_s else f"connection: {type(error).__name__}"
        finally:
            record.end(answer.outcome(ending))

    async def prepare(self, prompt: Prompt) -> None:
        """Send one request, which is not measured, to verify address, key and model. For a server that rejects
        `stream_options`, all further requests omit it.

        Raises:
            ServerRefuses: the request failed.
        """
        ending = await self._try(prompt)
        if ending.startswith(("http 400", "http 422")):
            asked, self.target = self.target, replace(self.target, ask_usage=False)
            if await self._try(prompt) == FINISHED:
                return
            self.target = asked
        if ending != FINISHED:
            raise ServerRefuses(f"the first request to {self.target.path} failed: {ending}")

    async def _try(self, prompt: Prompt) -> str:
        record = Recorder()
        await self.ask(prompt, self._clock.now_s(), record)
        return record.outcomes[0].ending

    async def _exchange(self, body: bytes, answer: "_Answer") -> str:
        async with await self._post(body) as response:
            if response.status != 200:
                return await _refusal(response)
            if response.content_type != "text/event-stream":
                return f"no stream but {response.content_type}"
            decoder = EventDecoder()
            try:
                async for piece in response.content.iter_any():
                    for event in decoder.feed(piece):
                        if (ending := answer.take(event)) is not None:
                            await _read_out(response)
                            return ending
            except EventTooLarge:
                return "event too large"
        return answer.at_close()

    async def _post(self, body: bytes) -> aiohttp.ClientResponse:
        """The response's head. Some servers close a connection after a response without notice, and a request sent on
        it is lost. Like other clients, this one sends it again; its latency still counts from the start. A failure on a
        new connection is an error."""
        while True:
            connection = _Connection()
            try:
                return await self._session.post(self.target.path, data=body, trace_request_ctx=connection)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not connection.kept:
                    raise


@dataclass(slots=True)
class _Connection:
    """A connection. `kept`: reused from an earlier request."""

    kept: bool = False


@dataclass(slots=True)
class _Answer:
    """A response in progress."""

    due_s: float
    clock: Clock
    sent_s: float = field(init=False)
    pieces_s: list[float] = field(default_factory=list)
    concluded: bool = False
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ended_s: float | None = None

    def __post_init__(self) -> None:
        self.sent_s = self.clock.now_s()

    def take(self, event: bytes) -> str | None:
        """Process an event. Returns the outcome if the event ends the answer."""
        if event.strip() == DONE:
            self.ended_s = self.clock.now_s()
            return FINISHED if self.pieces_s or self.output_tokens is not None else "empty answer"
        try:
            chunk = read_chunk(event)
        except Malformed:
            return "malformed event"
        if chunk.error is not None:
            return f"error in the stream: {chunk.error}"
        if chunk.answers:
            self.pieces_s.append(self.clock.now_s())
        self.concluded = self.concluded or chunk.ends
        if chunk.output_tokens is not None:  # some servers send it with each chunk: the last one is the total
            self.prompt_tokens, self.output_tokens = chunk.prompt_tokens, chunk.output_tokens
        return None

    def at_close(self) -> str:
        """The outcome at the end of the stream. Without [DONE], an answer with a finish reason is complete, too."""
        return FINISHED if self.concluded and self.pieces_s else "stream cut off"

    def outcome(self, ending: str) -> Outcome:
        return Outcome(
            due_s=self.due_s,
            sent_s=self.sent_s,
            ended_s=self.clock.now_s() if self.ended_s is None else self.ended_s,
            ending=ending,
            pieces_s=tuple(self.pieces_s),
            prompt_tokens=self.prompt_tokens,
            usage_tokens=self.output_tokens,
        )


@asynccontextmanager
async def opened(target: Target, clock: Clock, *, keep_connections: bool = True) -> AsyncIterator[Client]:
    """A client. Without `keep_connections` each request opens a new connection."""
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    if target.key is not None:
        headers["authorization"] = f"Bearer {target.key}"
    kept_s = _IDLE_S if keep_connections else None
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=kept_s, force_close=not keep_connections)
    timeout = aiohttp.ClientTimeout(total=target.timeout_s)
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_kept)
    async with aiohttp.ClientSession(
        headers=headers, connector=connector, timeout=timeout, trace_configs=[trace]
    ) as session:
        yield Client(target, session, clock)


async def _note_kept(
    _: aiohttp.ClientSession, context: SimpleNamespace, __: aiohttp.TraceConnectionReuseconnParams
) -> None:
    context.trace_request_ctx.kept = True


async def _read_out(response: aiohttp.ClientResponse) -> None:
    """Read up to the last byte, which is not measured: only then can the next request reuse the connection."""
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(_LAST_BYTE_S):
            await response.read()


async def _refusal(response: aiohttp.ClientResponse) -> str:
    body = await response.content.read(_MAX_ERROR_BYTES)
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return f"http {response.status}"
    stated = answer.get("error") or answer.get("detail") if isinstance(answer, dict) else None
    return f"http {response.status} {error_code(stated)}" if stated else f"http {response.status}"
