"""From token deltas on the engine thread to text deltas on an event loop."""

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from engine.errors import EngineError, GrammarGaveUp
from engine.request import Fault, FinishReason, Request, SamplingParams, TextDelta, TokenDelta, Usage, joined_delta
from engine.runtime.notify import Wakeup
from engine.text.detokenizer import Detokenizer

MAX_UNREAD_DELTAS = 128
"""Of each choice, what lies unread before its engine stands still."""
FEW_UNREAD_DELTAS = 32
"""Of each choice, what is left of them when it goes on: enough to read from until there is more."""
MAX_JOINED_TOKENS = 64
"""What a reader that lags behind gets at a time, and one delta more."""


class OutputDispatcher:
    """The way from the engine thread into one event loop: one call into the loop a step, whatever it carries."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # who has a dispatcher for each loop forgets it with the loop
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
        loop = self._loop()
        if loop is not None:
            with suppress(RuntimeError):  # it was closed
                loop.call_soon_threadsafe(action)

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
        """What the reader sees of a delta. Raises EngineError where the engine says that the request failed,
        GrammarGaveUp where its grammar is why."""
        if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise _failure(self.request.params, delta.error)
        before = self._detokenizer.consumed_tokens
        text = self._detokenizer.push(delta.token_ids)
        kept = self._detokenizer.consumed_tokens - before
        if delta.stop_token is not None and self.request.params.include_stop:
            text += self._detokenizer.push((delta.stop_token,))
        if delta.finish_reason is not None and self._detokenizer.stopped is None:
            text += self._detokenizer.flush()
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
            embedding=delta.embedding,
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


class EngineControl(Protocol):
    """What a reader has the engine do with choices that it has not ended."""

    def abort(self, choices: Sequence[Choice]) -> None:
        """End what the engine would go on with."""
        ...

    def pause(self, choices: Sequence[Choice]) -> None:
        """Stand still, as nobody reads."""
        ...

    def resume(self, choices: Sequence[Choice]) -> None:
        """Go on."""
        ...


class ChoiceStreams:
    """The choices of one call, read together. Lives on one event loop.

    What nobody reads is bounded: at `MAX_UNREAD_DELTAS` a choice the engine is told to pause, and at
    `FEW_UNREAD_DELTAS` to go on. Beyond that there is at most what it was computing when it was told.
    """

    def __init__(self, choices: Sequence[Choice], engine: EngineControl) -> None:
        self._choices = {choice.request.id: choice for choice in choices}
        self._unread = {choice.index: choice for choice in choices}
        self._ready: deque[TextDelta] = deque()
        self._error: EngineError | None = None
        self._changed = Wakeup()
        self._engine = engine
        self._paused = False
        self._most, self._few = MAX_UNREAD_DELTAS * len(choices), FEW_UNREAD_DELTAS * len(choices)

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
                self._engine.abort([choice])  # a stop string: the engine would go on
            if seen.text or seen.token_ids or seen.prompt_logprobs or seen.finish_reason is not None:
                self._ready.append(seen)
                if not self._paused and len(self._ready) >= self._most:
                    self._paused = True
                    self._engine.pause(self._unfinished())
        self._changed.wake()

    @property
    def unread(self) -> list[Choice]:
        """Choices of which the reader has not had the last delta."""
        return list(self._unread.values())

    async def next(self) -> TextDelta | None:
        """The next delta; what waits for the same choice comes with it. None when all choices have ended."""
        while not self._ready:
            if self._error is not None:
                raise self._error
            if not self._unread:
                return None
            await self._changed.wait()
        parts = [self._ready.popleft()]
        index, tokens = parts[0].index, len(parts[0].token_ids)
        while self._ready and self._ready[0].index == index and tokens < MAX_JOINED_TOKENS:
            parts.append(self._ready.popleft())
            tokens += len(parts[-1].token_ids)
        delta = joined_delta(parts)
        if self._paused and len(self._ready) <= self._few:
            self._paused = False
            self._engine.resume(self._unfinished())
        if delta.finish_reason is not None:
            del self._unread[delta.index]
        return delta

    def _unfinished(self) -> list[Choice]:
        return [choice for choice in self._choices.values() if not choice.finished]


def _failure(params: SamplingParams, error: str | None) -> EngineError:
    if error != Fault.GRAMMAR:
        return EngineError(error or "the engine stopped while the request was running")
    param = "allowed_token_ids" if params.grammar is None else params.grammar.param
    return GrammarGaveUp(
        param,
        f"Invalid {param}: the grammar is too complex to complete the answer, or allows no further token. Please use "
        "fewer alternatives and smaller repetition bounds.",
    )
