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
"""Unread deltas of one choice at which its requests are paused."""
FEW_UNREAD_DELTAS = 32
"""Unread deltas of one choice at which paused requests resume, so that there is something to read until the next step.
"""
MAX_JOINED_TOKENS = 64
"""Tokens up to which unread deltas of a choice are joined into one for a reader that lags behind."""


class OutputDispatcher:
    """Passes token deltas from the engine thread to the streams of one event loop, with one call into the loop for each
    step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # the owner's table of dispatchers is weak in the loop
        self._streams: dict[str, ChoiceStreams] = {}

    def register(self, request_id: str, streams: "ChoiceStreams") -> None:
        """Route the deltas of a request to `streams`."""
        self._streams[request_id] = streams

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drop the deltas of these requests from now on."""
        for request_id in request_ids:
            self._streams.pop(request_id, None)

    def post(self, deltas: list[TokenDelta]) -> None:
        """Deliver the deltas of a step. Called on the engine thread."""
        self.call(lambda: self._receive(deltas))

    def call(self, action: Callable[[], None]) -> None:
        """Run `action` on the event loop; no effect once the loop is closed. Called on any thread."""
        loop = self._loop()
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(action)

    def _receive(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            streams = self._streams.get(delta.request_id)
            if streams is not None:
                streams.push(delta)


AbortListener = Callable[[int, Usage], None]
"""Callback with the index of a choice and what it had consumed when the engine released it."""


class Choice:
    """Converts one request's token ids to text, and ends it at a stop string."""

    def __init__(self, index: int, request: Request, detokenizer: Detokenizer) -> None:
        self.index = index
        self.request = request
        self.finished = False
        self._detokenizer = detokenizer

    def read(self, delta: TokenDelta) -> TextDelta:
        """The text delta of a token delta.

        Raises:
            GrammarGaveUp: the request failed because its grammar cannot be followed.
            EngineError: the request failed otherwise, or was aborted.
        """
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
        """The usage up to the token that completed the stop string. Tokens computed past it are not billed."""
        return replace(self.request.usage, completion_tokens=self._detokenizer.consumed_tokens)


class EngineControl(Protocol):
    """What a reader can request from the engine for choices that it has not finished."""

    def abort(self, choices: Sequence[Choice]) -> None:
        """End the choices' requests."""
        ...

    def pause(self, choices: Sequence[Choice]) -> None:
        """Stop computing the choices' requests."""
        ...

    def resume(self, choices: Sequence[Choice]) -> None:
        """Compute the choices' requests again."""
        ...


class ChoiceStreams:
    """The output of the choices of one call, read together on one event loop.

    Unread deltas are bounded: at `MAX_UNREAD_DELTAS` a choice the requests are paused, and at `FEW_UNREAD_DELTAS` they
    resume. Only the steps already in flight when the pause was sent can exceed the bound.
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
        """Take in a token delta. Called on the event loop."""
        choice = self._choices[delta.request_id]
        if choice.finished:
            return
        try:
            seen = choice.read(delta)
        except EngineError as error:
            self._error = error
        else:
            if seen.finish_reason is not None and delta.finish_reason is None:
                self._engine.abort([choice])  # ended by a stop string that the engine does not see
            if seen.text or seen.token_ids or seen.prompt_logprobs or seen.finish_reason is not None:
                self._ready.append(seen)
                if not self._paused and len(self._ready) >= self._most:
                    self._paused = True
                    self._engine.pause(self._unfinished())
        self._changed.wake()

    @property
    def unread(self) -> list[Choice]:
        """Choices whose last delta has not been read."""
        return list(self._unread.values())

    async def next(self) -> TextDelta | None:
        """The next delta, joined with those of the same choice that are already there; None once all choices have
        ended.

        Raises:
            EngineError: a request failed; raised after the deltas before it.
        """
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
