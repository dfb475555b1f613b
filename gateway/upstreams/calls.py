"""The answers to the prompts of a call, as they arrive over a connection."""

import asyncio
import struct
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from engine.request import FinishReason, PromptInput, TextDelta, Usage
from gateway.generation.remote_prompt import RemotePrompt
from gateway.http.errors import APIError
from gateway.speech.structured import StructuredDelta
from gateway.upstreams.answers import AnswerReader, ReportedUsage
from gateway.upstreams.body import call_of, prompt_of
from gateway.upstreams.connection import MAX_BODY_BYTES, UpstreamConnection
from gateway.upstreams.errors import no_answer
from gateway.upstreams.events import EventReader, EventTooLong

END_S = 0.1
"""Time that a connection has to end its response after the answer; else it is closed."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """The parts that the prompts of a call share. `model`: the name that the server knows. `count`: as in
    `AnswerReader`. `cache_salt`: separates the tenant's prefix cache, on a server that takes it. `on_first_token` is
    called with the seconds that it took, `on_estimated` where the usage of an answer is an estimate."""

    connection: UpstreamConnection
    model: str
    running_usage: bool
    cache_salt: str | None
    count: Callable[[str], int | None]
    on_first_token: Callable[[float], None]
    on_estimated: Callable[[], None]


class GeneratedAnswer:
    """The choices of one prompt. `first`: the number of the first."""

    def __init__(self, context: CallContext, given: PromptInput, first: int) -> None:
        self._context = context
        self._given = given
        self._reader = AnswerReader(given, first, context.count)

    @property
    def choices(self) -> range:
        """The numbers of its choices."""
        return self._reader.choices

    def usage_of(self, number: int) -> Usage:
        """The usage of a choice so far."""
        return self._reader.usage_of(number)

    async def deltas(self) -> AsyncGenerator[Sequence[TextDelta]]:
        """As `stream.Answer`. Raises: APIError."""
        context, reader, events = self._context, self._reader, EventReader()
        path, body = call_of(self._given, context.model, running_usage=context.running_usage)
        if context.cache_salt is not None:
            body["cache_salt"] = context.cache_salt
        began_s, whole = time.monotonic(), bytearray()
        reader.is_sent = True
        async with aclosing(self._chunks(path, body)) as chunks:
            async for chunk, is_stream in chunks:
                if is_stream:
                    batch: Sequence[TextDelta] = _read(reader, events, chunk)
                else:
                    whole += chunk
                    batch = []
                    if len(whole) > MAX_BODY_BYTES:
                        raise no_answer()
                if batch:
                    if began_s:
                        context.on_first_token(time.monotonic() - began_s)
                        began_s = 0.0
                    yield batch
                if reader.is_done:
                    if not reader.is_cut:
                        await _read_to_the_end(chunks)
                    break
        if whole and (batch := reader.read(bytes(whole))):
            yield batch
        last = reader.finish()
        if reader.is_estimated:
            context.on_estimated()
        yield last

    async def _chunks(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[tuple[bytes, bool]]:
        has_begun = False
        try:
            async with aclosing(self._context.connection.chunks(path, body, self._given.request_id or "")) as chunks:
                async for chunk in chunks:
                    has_begun = True
                    yield chunk
        except APIError:
            if self._reader.is_whole:
                return  # the connection broke after the end of the answer
            self._reader.is_sent = has_begun
            raise


class EmbeddedAnswer:
    """The embedding of one prompt. `number`: of its only choice."""

    def __init__(self, context: CallContext, given: PromptInput, number: int) -> None:
        self._context = context
        self._given = given
        self._prompt: RemotePrompt = prompt_of(given)
        self.choices = range(number, number + 1)

    def usage_of(self, number: int) -> Usage:
        """Its usage so far."""
        return Usage(self._prompt.tokens, 0)

    async def deltas(self) -> AsyncGenerator[Sequence[TextDelta]]:
        """As `stream.Answer`. Raises: APIError."""
        context = self._context
        path, body = call_of(self._given, context.model, running_usage=False)
        answer = await context.connection.post(path, body, self._given.request_id or "")
        try:
            vector = answer["data"][0]["embedding"]
            embedding = struct.pack(f"<{len(vector)}f", *vector)
            stated: Any = answer.get("usage")
            tokens = self._prompt.tokens if stated is None else ReportedUsage.read(stated).prompt_tokens
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, struct.error):
            raise no_answer() from None
        is_estimated = stated is None and self._prompt.known_ids is None
        if is_estimated:
            context.on_estimated()
        yield [
            StructuredDelta(
                self.choices.start,
                finish_reason=FinishReason.STOP,
                usage=Usage(tokens, 0, prefilled_tokens=tokens),
                embedding=embedding,
                prompt_tokens=tokens,
                is_estimated=is_estimated,
            )
        ]


async def _read_to_the_end(chunks: AsyncGenerator[tuple[bytes, bool]]) -> None:
    """Read the end of a response after that of its answer, so that the connection can be used again."""
    with suppress(TimeoutError, APIError):
        async with asyncio.timeout(END_S):
            async for _ in chunks:
                pass


def _read(reader: AnswerReader, events: EventReader, chunk: bytes) -> list[TextDelta]:
    """The deltas of all events in a chunk."""
    try:
        datas = events.feed(chunk)
    except EventTooLong:
        raise no_answer() from None
    deltas: list[TextDelta] = []
    for data in datas:
        if not reader.is_done:
            deltas += reader.read(data)
    return deltas
