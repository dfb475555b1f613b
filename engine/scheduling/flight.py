"""The steps that were launched and have not landed, and which of their rows will come to nothing.

A step may be planned and launched before the result of the one before it is known: the host knows everything of that
result but the ids of the tokens that it draws, and those are on the device when they are needed. What it does not know
either is who ends, be it by a stop token, by a failure or from outside; a row in flight of one that has is dropped when
its step lands.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from engine.request import Request
from engine.scheduling.plan import StepPlan


class Fate(Enum):
    """Why a row in flight comes to nothing, which says who bears its part of the step's time.

    `ABORTED`: its request was ended from outside. Its tenant is served, as it was computed for that; but the request
    has been told by then what it consumed, so the time is nobody's.
    `SURPLUS`: it was planned on what the step before was to bring and did not, as its request ended there, or nothing
    came of that step. Computed for nobody.
    `PREEMPTED`: its request gave way to another. The class that this was for bears the time; nobody is served, as the
    request computes the same again, and is charged for it then.
    `PAUSED`: its request was paused or preempted from outside, and bears the time itself.
    """

    ABORTED = auto()
    SURPLUS = auto()
    PREEMPTED = auto()
    PAUSED = auto()


@dataclass(frozen=True, slots=True)
class Flight:
    """A step in flight. `dropped` are requests of which it may have a row, and not for its result any more."""

    plan: StepPlan
    dropped: dict[Request, Fate] = field(default_factory=dict)


class Flights:
    """The steps in flight, in the order of their launch, which is that of their landing."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def have_drafts(self) -> bool:
        """Is there a row in flight of which nobody knows how far it gets its request?"""
        return any(flight.plan.draft_tokens for flight in self._flights)

    def launch(self, plan: StepPlan) -> None:
        self._flights.append(Flight(plan))

    def land(self, plan: StepPlan) -> Flight:
        assert self._flights, "this is not the plan in flight: there is none"
        assert plan is self._flights[0].plan, "this is not the plan in flight that was launched first"
        return self._flights.popleft()

    def drop(self, request: Request, fate: Fate) -> None:
        """What is in flight of the request comes to nothing. A row that was dropped before keeps its fate."""
        if request.scheduled > request.computed:
            for flight in self._flights:
                flight.dropped.setdefault(request, fate)

    def check(self, running: Iterable[Request]) -> None:
        """What is scheduled of each running request and not computed is in flight: no more, no less, and in order."""
        ends = {request: request.computed for request in running}
        for flight in self._flights:
            for row in flight.plan.rows:
                if row.request not in flight.dropped:
                    assert row.start == ends.get(row.request), f"{row.request.id} has a row in flight out of order"
                    ends[row.request] = row.start + row.tokens
        for request, end in ends.items():
            assert request.scheduled == end, f"{request.id} is scheduled up to {request.scheduled}, in flight to {end}"
