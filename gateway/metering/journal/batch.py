"""The changes of one commit of the journal."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gateway.metering.event import UsageEvent
from gateway.metering.journal.usage_context import Progress, UsageContext


class Ended(NamedTuple):
    """A request that ended. `done` completes when `event` is on the disk. If the commit fails, the event that
    `otherwise` makes is written in its place once the disk works again."""

    event: UsageEvent
    done: "Future[None] | None" = None
    otherwise: Callable[[], UsageEvent] | None = None


@dataclass(slots=True)
class Batch:
    """Coalesced changes: only the newest progress of a request, and only the event of a request that begins and ends in
    the batch. Not thread-safe."""

    opened: dict[str, tuple[UsageContext, Progress]] = field(default_factory=dict)
    advanced: dict[str, Progress] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    acknowledged: int = 0
    credit_since_ms: dict[str, int] = field(default_factory=dict)
    credit_spent: Mapping[str, int] = field(default_factory=dict)
    """Sums as of the batch's commit."""
    credit_asked: "list[Future[Mapping[str, int]]]" = field(default_factory=list)
    followers: "list[Future[None]]" = field(default_factory=list)
    """Complete when the batch is on the disk."""

    def __bool__(self) -> bool:
        return bool(self.opened or self.advanced or self.ended or self.acknowledged or self.credit_asked)

    def open(self, usage_context: UsageContext, progress: Progress = Progress()) -> None:  # noqa: B008 a value
        self.opened[usage_context.request_id] = (usage_context, progress)

    def advance(self, request_id: str, progress: Progress) -> None:
        if request_id in self.opened:
            self.opened[request_id] = (self.opened[request_id][0], progress)
        else:
            self.advanced[request_id] = progress

    def end(self, ended: Ended) -> None:
        request_id = ended.event.request_id
        self.opened.pop(request_id, None)
        self.advanced.pop(request_id, None)
        self.ended.append(ended)

    def acknowledge(self, sequence: int) -> None:
        self.acknowledged = max(self.acknowledged, sequence)

    def follow_credit(self, since_ms: Mapping[str, int], told: "Future[Mapping[str, int]]") -> None:
        """Follow these tenants before the batch's events are added. `told` completes with the sums after them."""
        self.credit_since_ms.update(since_ms)
        self.credit_asked.append(told)

    def followed_by(self, later: "Batch") -> None:
        """Append the changes of a later batch."""
        for usage_context, progress in later.opened.values():
            self.open(usage_context, progress)
        for request_id, progress in later.advanced.items():
            self.advance(request_id, progress)
        for ended in later.ended:
            self.end(ended)
        self.acknowledge(later.acknowledged)
        self.credit_since_ms.update(later.credit_since_ms)
        self.credit_asked += later.credit_asked
        self.followers += later.followers

    def numbered(self, source: str, first_sequence: int) -> list[UsageEvent]:
        """The events with source and sequence."""
        return [
            replace(ended.event, source=source, sequence=sequence)
            for sequence, ended in enumerate(self.ended, first_sequence)
        ]

    def told(self) -> None:
        """Complete the waiting calls: the batch is on the disk."""
        for ended in self.ended:
            if ended.done is not None:
                ended.done.set_result(None)

    def fall_back(self) -> "list[Future[None]]":
        """Replace each event by its `otherwise`. Returns the futures of the waiting calls, which get the error."""
        waiting = [ended.done for ended in self.ended if ended.done is not None]
        self.ended = [Ended(each.event if each.otherwise is None else each.otherwise()) for each in self.ended]
        return waiting
