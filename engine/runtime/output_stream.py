"""The deltas of one call: the only buffer between the engine and the reader of its answer."""

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from engine.errors import EngineError
from engine.request import TextDelta, TokenDelta, joined_delta
from engine.runtime.notify import Wakeup
from engine.runtime.streams import AbortListener, Choice, DeltaReceiver

MAX_UNREAD_DELTAS = 128
"""Unread deltas of one choice at which its requests are paused."""
FEW_UNREAD_DELTAS = 32
"""Unread deltas of one choice at which paused requests resume, so that there is something to read until the next step.
"""
MAX_BATCH_TOKENS = 64
"""Tokens up to which unread deltas are read together, and consecutive ones of a choice joined into one."""


class RequestControl(Protocol):
    """Commands of a reader for the choices of its call."""

    def register(self, choices: Sequence[Choice], receiver: DeltaReceiver) -> None:
        """Have the deltas of the choices delivered to `receiver`, on the running event loop."""
        ...

    async def submit(self) -> None:
        """Submit all choices of the call, once their grammars are compiled and their blocks are hashed.

        Raises:
            InvalidParameter, TooManyGrammars, EngineError: as `Engine.submit` has them.
        """
        ...

    def pause(self, choices: Sequence[Choice]) -> None:
        """Stop computing the choices' requests."""
        ...

    def resume(self, choices: Sequence[Choice]) -> None:
        """Compute the choices' requests again."""
        ...

    def abort(self, choices: Sequence[Choice], on_abort: AbortListener | None = None) -> None:
        """End the choices' requests."""
        ...

    def forget(self, choices: Sequence[Choice]) -> None:
        """Drop the deltas of the choices from now on."""
        ...


class OutputStream:
    """The output of the choices of one call, read on one event loop. An async context manager: entering it submits the
    call, and leaving it aborts the choices that have not been read to their ends.

    Unread deltas are bounded: at `MAX_UNREAD_DELTAS` a choice the requests are paused, and at `FEW_UNREAD_DELTAS` they
    resume. Only the steps already in flight when the pause was sent can exceed the bound. One reader.
    """

    def __init__(
        self, choices: Sequence[Choice], control: RequestControl, on_abort: AbortListener | None = None
    ) -> None:
        """`on_abort` is called for each choice whose last delta was not read."""
        self._choices = {choice.id: choice for choice in choices}
        self._unread = {choice.index: choice for choice in choices}
        self._ready: deque[TextDelta] = deque()
        self._changed = Wakeup()
        self._control = control
        self._on_abort = on_abort
        self._submitting: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._paused = self._closed = False
        self._most, self._few = MAX_UNREAD_DELTAS * len(choices), FEW_UNREAD_DELTAS * len(choices)

    async def __aenter__(self) -> Self:
        self._control.register(list(self._choices.values()), self)
        self._submitting = asyncio.create_task(self._submit())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        if self._submitting is not None and not self._submitting.done():
            await asyncio.wait([self._submitting])

    def push(self, delta: TokenDelta) -> None:
        """Take in a token delta. Called on the event loop."""
        choice = self._choices[delta.request_id]
        if choice.finished:
            return
        try:
            seen = choice.read(delta)
        except EngineError as error:
            self._error = self._error or error
        else:
            if seen.finish_reason is not None and delta.finish_reason is None:
                self._control.abort([choice])  # ended by a stop string that the engine does not see
            if seen.text or seen.token_ids or seen.prompt_logprobs or seen.finish_reason is not None:
                self._ready.append(seen)
                if not self._paused and len(self._ready) >= self._most:
                    self._paused = True
                    self._control.pause(self._unfinished())
        self._changed.wake()

    async def next(self) -> TextDelta | None:
        """The next delta, joined with those of the same choice that follow it and are there; None once all choices
        have ended.

        Raises:
            InvalidParameter, TooManyGrammars: the call cannot be submitted.
            EngineError: a request failed; raised after the deltas before it.
            Exception: what `fail` was called with.
        """
        while not self._ready:
            if self._error is not None:
                raise self._error
            if not self._unread:
                return None
            await self._changed.wait()
        return self._pop(MAX_BATCH_TOKENS)

    async def next_batch(self) -> list[TextDelta]:
        """The deltas that are there: at least one, and beyond it at most `MAX_BATCH_TOKENS` in all. Empty once all
        choices have ended.

        Raises:
            Exception: as `next`.
        """
        delta = await self.next()
        batch = [] if delta is None else [delta]
        tokens = sum(map(_size, batch))
        while self._ready and tokens + _size(self._ready[0]) <= MAX_BATCH_TOKENS:
            batch.append(self._pop(MAX_BATCH_TOKENS - tokens))
            tokens += _size(batch[-1])
        return batch

    def fail(self, error: Exception) -> None:
        """End the call at once: abort its requests, drop unread deltas, and have `next` raise `error`."""
        self._error = error
        self._ready.clear()
        self._close()
        self._changed.wake()

    async def _submit(self) -> None:
        try:
            await self._control.submit()
        except Exception as error:
            self._error = self._error or error
            self._changed.wake()

    def _pop(self, most_tokens: int) -> TextDelta:
        parts = [self._ready.popleft()]
        index, tokens = parts[0].index, _size(parts[0])
        while self._ready and self._ready[0].index == index and tokens + _size(self._ready[0]) <= most_tokens:
            parts.append(self._ready.popleft())
            tokens += _size(parts[-1])
        delta = joined_delta(parts)
        if self._paused and len(self._ready) <= self._few:
            self._paused = False
            self._control.resume(self._unfinished())
        if delta.finish_reason is not None:
            del self._unread[delta.index]
        return delta

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._submitting is not None:
            self._submitting.cancel()
        self._control.forget(list(self._choices.values()))
        self._control.abort(list(self._unread.values()), self._on_abort)

    def _unfinished(self) -> list[Choice]:
        return [choice for choice in self._choices.values() if not choice.finished]


def _size(delta: TextDelta) -> int:
    """Tokens; a delta without any counts as one."""
    return len(delta.token_ids) or 1
