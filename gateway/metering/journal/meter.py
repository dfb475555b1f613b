"""Meters one request, from admission to its usage event in the journal."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus

from gateway.metering.event import Ending, UsageEvent
from gateway.metering.journal.usage_context import Progress, UsageContext, Work, event_of
from gateway.metering.journal.usage_log import UsageLog


def unix_now_ms() -> int:
    return time.time_ns() // 1_000_000


class Meter:
    """Records a request's progress in the journal, and its end exactly once.

    `sent`: progress handed to the client's socket. It stays at zero until the end of an answer that is not streamed.
    `status_sent`: HTTP status of the response; 0 until it starts.

    Raises:
        JournalUnavailable: new requests are rejected.
    """

    def __init__(self, journal: UsageLog, usage_context: UsageContext, clock: Callable[[], int] = unix_now_ms) -> None:
        self.sent = Progress()
        self.status_sent = 0
        self._usage_context = usage_context
        self._journal = journal
        self._clock = clock
        self._closed = False
        journal.begin(usage_context)

    @property
    def closed(self) -> bool:
        """Whether the request's end is recorded."""
        return self._closed

    @property
    def billed_nanodollars(self) -> int:
        """Cost of the tokens sent so far."""
        return self._usage_context.cost(self.sent)

    def reopen(self, usage_context: UsageContext) -> None:
        """Replace the context: another model answers, or for another reason. Requires that nothing was sent.

        Raises:
            JournalUnavailable: the context is unchanged.
        """
        assert not self._closed, "a request ends once"
        assert self.sent == Progress(), "tokens were sent"
        assert usage_context.request_id == self._usage_context.request_id
        self._journal.begin(usage_context)
        self._usage_context = usage_context

    def wait_for_commits(self) -> Awaitable[None]:
        """Before more of an answer is sent: as `Journal.wait_for_commits`."""
        return self._journal.wait_for_commits(self._usage_context.request_id)

    def advance(self, sent: Progress) -> None:
        self.sent = sent
        self._journal.advance(self._usage_context.request_id, sent)

    async def close(self, total: Progress, work: Work, ending: Ending) -> None:
        """Record the end of a complete answer, whose last bytes the caller sends next, with status 200. Returns when
        the event is on the disk.

        Raises:
            JournalUnavailable: the event is not on the disk, so the caller sends an error, with status 503 unless the
                response has started. The tokens sent before are billed later.
        """
        assert not self._closed, "a request ends once"
        self._closed = True
        usage_context, sent, now_ms = self._usage_context, self.sent, self._clock()
        failed_status = self.status_sent or HTTPStatus.SERVICE_UNAVAILABLE.value

        def otherwise() -> UsageEvent:
            unsent = max(0, total.completion_tokens - sent.completion_tokens)
            undelivered = replace(work, undelivered_tokens=work.undelivered_tokens + unsent)
            return event_of(usage_context, sent, undelivered, Ending.ERROR, failed_status, now_ms)

        event = event_of(usage_context, total, work, ending, HTTPStatus.OK.value, now_ms)
        await self._journal.finish(event, otherwise)
        self.sent = total

    def abandon(self, computed: Progress, work: Work, ending: Ending, http_status: int) -> None:
        """Record an early end and bill the tokens that were sent. No effect on a closed request. `http_status`: of the
        error, for a response that has not started."""
        if self._closed:
            return
        self._closed = True
        unsent = max(0, computed.completion_tokens - self.sent.completion_tokens)
        work = replace(work, undelivered_tokens=work.undelivered_tokens + unsent)
        status = self.status_sent or http_status
        self._journal.finish_later(event_of(self._usage_context, self.sent, work, ending, status, self._clock()))
