"""From token deltas on the engine thread to text deltas on an event loop: dispatch, and detokenising."""

import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from engine.errors import AdapterUnavailable, EngineError, GrammarGaveUp
from engine.request import Fault, FinishReason, SamplingParams, TextDelta, TokenDelta, Usage
from engine.text.detokenizer import Detokenizer


class DeltaReceiver(Protocol):
    """Where the deltas of a request go."""

    def push(self, delta: TokenDelta) -> None:
        """Take in a token delta. Called on the event loop."""
        ...


class OutputDispatcher:
    """Passes token deltas from the engine thread to the streams of one event loop, with one call into the loop for each
    step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # the owner's table of dispatchers is weak in the loop
        self._streams: dict[str, DeltaReceiver] = {}

    def register(self, request_id: str, streams: DeltaReceiver) -> None:
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


class OutputDispatchers:
    """The dispatcher of each event loop that reads outputs."""

    def __init__(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, OutputDispatcher] = (
            weakref.WeakKeyDictionary()
        )

    def current(self) -> OutputDispatcher:
        """That of the running event loop."""
        loop = asyncio.get_running_loop()
        dispatcher = self._by_loop.get(loop)
        if dispatcher is None:
            dispatcher = self._by_loop[loop] = OutputDispatcher(loop)
        return dispatcher


AbortListener = Callable[[int, Usage], None]
"""Callback with the index of a choice and what it had consumed when the engine released it."""


class Choice:
    """Converts one request's token ids to text, and ends it at a stop string. `id`: that of the request."""

    def __init__(self, index: int, id: str, params: SamplingParams, detokenizer: Detokenizer) -> None:
        self.index = index
        self.id = id
        self.finished = False
        self._params = params
        self._detokenizer = detokenizer

    def read(self, delta: TokenDelta) -> TextDelta:
        """The text delta of a token delta.

        Raises:
            GrammarGaveUp: the request failed because its grammar cannot be followed.
            AdapterUnavailable: it failed because its adapter could not be loaded.
            EngineError: the request failed otherwise, or was aborted.
        """
        if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise _failure(self._params, delta.error)
        before = self._detokenizer.consumed_tokens
        text = self._detokenizer.push(delta.token_ids)
        kept = self._detokenizer.consumed_tokens - before
        if delta.stop_token is not None and self._params.include_stop:
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
            cached_tokens=delta.cached_tokens,
            embedding=delta.embedding,
        )
        if self._detokenizer.stopped is not None:
            assert delta.usage is not None, f"{self.id} has stop strings, and a delta without its usage"
            # Up to the token that completed the stop string: tokens computed past it are not billed.
            usage = replace(delta.usage, completion_tokens=self._detokenizer.consumed_tokens)
            seen = replace(seen, finish_reason=FinishReason.STOP, stop=self._detokenizer.stopped, usage=usage)
        self.finished = seen.finish_reason is not None
        return seen


def _failure(params: SamplingParams, error: str | None) -> EngineError:
    if error == Fault.ADAPTER:
        return AdapterUnavailable("the model's adapter could not be loaded in time; please retry")
    if error != Fault.GRAMMAR:
        return EngineError(error or "the engine stopped while the request was running")
    param = "allowed_token_ids" if params.grammar is None else params.grammar.param
    return GrammarGaveUp(
        param,
        f"Invalid {param}: the grammar is too complex to complete the answer, or allows no further token. Please use "
        "fewer alternatives and smaller repetition bounds.",
    )
