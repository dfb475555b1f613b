"""From token deltas on the engine thread to text deltas on an event loop: dispatch, and detokenising."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Protocol

from engine.errors import AdapterUnavailable, EngineError, GrammarGaveUp
from engine.request import Fault, FinishReason, SamplingParams, TextDelta, TokenDelta, Usage
from engine.text.detokenizer import Detokenizer

MAX_JOINED_TOKENS = 64
"""Tokens up to which deltas of a request are joined."""


class DeltaReceiver(Protocol):
    """Where the deltas of a request go."""

    def push(self, delta: TokenDelta) -> None:
        """Take in a token delta. Called on the event loop."""
        ...


class OutputDispatcher:
    """Passes token deltas from the engine thread to the streams of one event loop, with one call into the loop for each
    step, or for the steps that have passed since the loop has taken some in. Consecutive deltas of a request are then
    joined before their text is computed, so that a loop that falls behind has less to do for a token."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # the owner's table of dispatchers is weak in the loop
        self._streams: dict[str, DeltaReceiver] = {}
        self._lock = threading.Lock()
        self._posted: list[list[TokenDelta]] = []
        """Steps that the loop has not taken in. A call into the loop is on its way while there are some."""

    def register(self, request_id: str, streams: DeltaReceiver) -> None:
        """Route the deltas of a request to `streams`."""
        self._streams[request_id] = streams

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drop the deltas of these requests from now on."""
        for request_id in request_ids:
            self._streams.pop(request_id, None)

    def post(self, deltas: list[TokenDelta]) -> None:
        """Deliver the deltas of a step. Called on the engine thread."""
        with self._lock:
            self._posted.append(deltas)
            is_first = len(self._posted) == 1
        if is_first:
            self.call(self._receive)

    def call(self, action: Callable[[], None]) -> None:
        """Run `action` on the event loop; no effect once the loop is closed. Called on any thread."""
        loop = self._loop()
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(action)

    def _receive(self) -> None:
        with self._lock:
            steps, self._posted = self._posted, []
        for delta in steps[0] if len(steps) == 1 else joined_steps(steps):
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


def joined_steps(steps: Sequence[Sequence[TokenDelta]]) -> list[TokenDelta]:
    """The deltas of several steps, those of a request joined up to `MAX_JOINED_TOKENS`, each in its order."""
    joined: list[TokenDelta] = []
    places: dict[str, int] = {}
    for delta in chain.from_iterable(steps):
        place = places.get(delta.request_id)
        if place is not None and len(joined[place].token_ids) + len(delta.token_ids) <= MAX_JOINED_TOKENS:
            before = joined[place]
            joined[place] = delta._replace(
                token_ids=before.token_ids + delta.token_ids,
                logprobs=before.logprobs + delta.logprobs,
                prompt_logprobs=before.prompt_logprobs + delta.prompt_logprobs,
            )
        else:
            places[delta.request_id] = len(joined)
            joined.append(delta)
    return joined


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
