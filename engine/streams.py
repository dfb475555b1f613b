"""From token deltas on the engine thread to text deltas on an event loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from engine.request import EngineError, FinishReason, Request, TextDelta, TokenDelta, Usage
from engine.text.detokenizer import Detokenizer


class Mailbox:
    """The way from the engine thread into one event loop: one call into the loop a step, whatever it carries."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._streams: dict[str, ChoiceStreams] = {}

    def register(self, request_id: str, streams: "ChoiceStreams") -> None:
        self._streams[request_id] = streams

    def forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._streams.pop(request_id, None)

    def post(self, deltas: list[TokenDelta]) -> None:
        """Called on the engine thread."""
        self.call(lambda: self._receive(deltas))

    def call(self, action: Callable[[], None]) -> None:
        """Have the event loop do something, if there still is one. Called on any thread."""
        with suppress(RuntimeError):  # it was closed
            self._loop.call_soon_threadsafe(action)

    def _receive(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            streams = self._streams.get(delta.request_id)
            if streams is not None:
                streams.push(delta)


AbortListener = Callable[[int, Usage], None]
"""Told of a choice, by its index, what it had consumed when the engine let go of it."""


class Choice:
    """Turns one request's token ids into text, and ends it where a stop string does."""

    def __init__(self, index: int, request: Request, detokenizer: Detokenizer) -> None:
        self.index = index
        self.request = request
        self.finished = False
        self._detokenizer = detokenizer

    def read(self, delta: TokenDelta) -> TextDelta:
        """What the reader sees of a delta. Raises EngineError where the engine says that the request failed."""
        if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise EngineError(delta.error or "the engine stopped while the request was running")
        before = self._detokenizer.consumed_tokens
        text = self._detokenizer.push(delta.token_ids)
        if delta.finish_reason is not None and self._detokenizer.stopped is None:
            text += self._detokenizer.flush()
        kept = self._detokenizer.consumed_tokens - before
        seen = TextDelta(
            self.index,
            text,
            delta.token_ids[:kept],
            delta.logprobs[:kept],
            delta.prompt_logprobs,
            finish_reason=delta.finish_reason,
            stop=delta.stop_token,
            usage=delta.usage,
            cached_tokens=self.request.cached_tokens,
        )
        if self._detokenizer.stopped is not None:
            seen = replace(
                seen, finish_reason=FinishReason.STOP, stop=self._detokenizer.stopped, usage=self._usage_so_far()
            )
        self.finished = seen.finish_reason is not None
        return seen

    def _usage_so_far(self) -> Usage:
        """Up to the token that completed the stop string; what the engine computed past it is nobody's."""
        return replace(self.request.usage, completion_tokens=self._detokenizer.consumed_tokens)


class ChoiceStreams:
    """The choices of one call, read together. Lives on one event loop.

    `abort` tells the engine to end a request that it would go on with.
    """

    def __init__(self, choices: Sequence[Choice], abort: Callable[[Choice], None]) -> None:
        self._choices = {choice.request.id: choice for choice in choices}
        self._unread = {choice.index: choice for choice in choices}
        self._ready: deque[TextDelta] = deque()
        self._error: EngineError | None = None
        self._changed = asyncio.Event()
        self._abort = abort

    def push(self, delta: TokenDelta) -> None:
        choice = self._choices[delta.request_id]
        if choice.finished:
            return
        try:
            seen = choice.read(delta)
        except EngineError as error:
            self._error = error
        else:
            if seen.finish_reason is not None and delta.finish_reason is None:
                self._abort(choice)  # a stop string: the engine would go on
            if seen.text or seen.token_ids or seen.prompt_logprobs or seen.finish_reason is not None:
                self._ready.append(seen)
        self._changed.set()

    @property
    def unread(self) -> list[Choice]:
        """Choices of which the reader has not had the last delta."""
        return list(self._unread.values())

    async def next(self) -> TextDelta | None:
        """The next delta; what waits for the same choice comes as one. None when all choices have ended."""
        while not self._ready:
            if self._error is not None:
                raise self._error
            if not self._unread:
                return None
            self._changed.clear()
            await self._changed.wait()
        delta = self._ready.popleft()
        while self._ready and self._ready[0].index == delta.index:
            delta = _join(delta, self._ready.popleft())
        if delta.finish_reason is not None:
            del self._unread[delta.index]
        return delta


def _join(first: TextDelta, second: TextDelta) -> TextDelta:
    return replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=first.logprobs + second.logprobs,
        prompt_logprobs=first.prompt_logprobs + second.prompt_logprobs,
    )
