"""One request's way to its usage event, from admission to the journal."""

import time
from collections.abc import Callable
from dataclasses import replace

from gateway.metering.event import Ending, UsageEvent
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.usage_context import Progress, UsageContext, Work, event_of


def unix_now_ms() -> int:
    return time.time_ns() // 1_000_000


class Meter:
    """Tells the journal how far a request has come, and of its end exactly once.

    `sent` is what was handed to the client's socket. An answer that is not streamed is sent as a whole, so until then
    nothing is.

    Raises:
        JournalUnavailable: nothing new may run.
    """

    def __init__(self, journal: Journal, usage_context: UsageContext, clock: Callable[[], int] = unix_now_ms) -> None:
        self.sent = Progress()
        self._usage_context = usage_context
        self._journal = journal
        self._clock = clock
        self._closed = False
        journal.begin(usage_context)

    @property
    def closed(self) -> bool:
        """The journal knows of the request's end."""
        return self._closed

    @property
    def billed_nanodollars(self) -> int:
        """For what has been sent so far."""
        return self._usage_context.cost(self.sent)

    def reopen(self, usage_context: UsageContext) -> None:
        """Another model answers, or for another reason. Nothing has been sent yet.

        Raises:
            JournalUnavailable: nothing has changed.
        """
        assert not self._closed, "a request ends once"
        assert self.sent == Progress(), "an answer has begun"
        assert usage_context.request_id == self._usage_context.request_id
        self._journal.begin(usage_context)
        self._usage_context = usage_context

    def advance(self, sent: Progress) -> None:
        self.sent = sent
        self._journal.advance(self._usage_context.request_id, sent)

    async def close(self, total: Progress, work: Work, ending: Ending) -> None:
        """The answer is complete, and all of it will have been sent with what the caller sends next. Returns when the
        event is on the disk.

        Raises:
            JournalUnavailable: it is not; the caller sends an error. What had been sent before is billed later.
        """
        assert not self._closed, "a request ends once"
        self._closed = True
        usage_context, sent, now_ms = self._usage_context, self.sent, self._clock()

        def otherwise() -> UsageEvent:
            unsent = total.completion_tokens - sent.completion_tokens
            undelivered = replace(work, undelivered_tokens=work.undelivered_tokens + unsent)
            return event_of(usage_context, sent, undelivered, Ending.ERROR, now_ms)

        await self._journal.finish(event_of(usage_context, total, work, ending, now_ms), otherwise)
        self.sent = total

    def abandon(self, computed: Progress, work: Work, ending: Ending) -> None:
        """It ended early: billed is what had been sent. Nothing where the request was closed before."""
        if self._closed:
            return
        self._closed = True
        unsent = max(0, computed.completion_tokens - self.sent.completion_tokens)
        work = replace(work, undelivered_tokens=work.undelivered_tokens + unsent)
        self._journal.finish_later(event_of(self._usage_context, self.sent, work, ending, self._clock()))
