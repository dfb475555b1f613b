"""`UsageLog`: the methods of the journal that a request's meter calls."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from gateway.metering.event import UsageEvent
from gateway.metering.journal.usage_context import Progress, UsageContext


class UsageLog(Protocol):
    """Records the usage of requests: `Journal`, or what keeps events back. The methods are documented there."""

    def begin(self, usage_context: UsageContext) -> None: ...

    def advance(self, request_id: str, progress: Progress) -> None: ...

    def wait_for_commits(self, request_id: str) -> Awaitable[None]: ...

    async def finish(self, event: UsageEvent, otherwise: Callable[[], UsageEvent] | None = None) -> None: ...

    def finish_later(self, event: UsageEvent) -> None: ...
