"""Follows the steps in flight from outside: what of a request they hold, and what is to come of each row."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from engine.config import BLOCK_TOKENS
from engine.request import Phase, Request
from engine.scheduling import ScheduledRow, StepPlan


class Standing(Enum):
    """What is to come of a row that lands. `LIVE`: its request gets on. `LOST`: that was preempted or paused meanwhile;
    it gets nothing and nobody is served. `ABORTED`: its tenant was served, for nothing. `SURPLUS`: nobody wanted it."""

    LIVE = auto()
    LOST = auto()
    ABORTED = auto()
    SURPLUS = auto()


@dataclass(frozen=True, slots=True)
class _Launched:
    """A plan, and how often each of its requests had been stopped then. `unwanted` by now are rows of those by id."""

    plan: StepPlan
    stops: dict[str, int]
    unwanted: set[str] = field(default_factory=set)

    def standing(self, request: Request) -> Standing:
        if request.id in self.unwanted:
            return Standing.SURPLUS
        if _stops(request) != self.stops[request.id]:
            return Standing.LOST
        return Standing.ABORTED if request.phase is Phase.FINISHED else Standing.LIVE


def _stops(request: Request) -> int:
    """How often it had to give back what it holds, be it for others or for its reader."""
    return request.preemptions + request.pauses


class FlightAuditor:
    """Knows requests by what they have and what was launched of them, and nothing of what the scheduler notes."""

    def __init__(self) -> None:
        self._flights: deque[_Launched] = deque()
        self.wasted_rows = 0

    def launched(self, plan: StepPlan) -> None:
        self._flights.append(_Launched(plan, {row.request.id: _stops(row.request) for row in plan.rows}))

    def landed(self, plan: StepPlan) -> dict[str, Standing]:
        """The standing of each row, by request, when the oldest plan in flight lands, before anything comes of it."""
        flight = self._flights.popleft()
        assert flight.plan is plan, "a step lands before one that was launched earlier"
        standings = {row.request.id: flight.standing(row.request) for row in plan.rows}
        self.wasted_rows += sum(each in (Standing.SURPLUS, Standing.ABORTED) for each in standings.values())
        return standings

    def came_to_nothing(self, standings: Mapping[str, Standing]) -> None:
        """The step that has landed did, and so what was launched behind it of the same requests will."""
        live = [request_id for request_id, standing in standings.items() if standing is Standing.LIVE]
        lost = [request_id for request_id, standing in standings.items() if standing is Standing.LOST]
        self.wasted_rows += len(live) + len(lost)
        self.unwanted(live)

    def unwanted(self, request_ids: Iterable[str]) -> None:
        """What is in flight of these came to nothing with the step that has landed."""
        ids = list(request_ids)
        for flight in self._flights:
            flight.unwanted.update(ids)

    @property
    def have_drafts(self) -> bool:
        """Is a row with drafts in flight? Whoever it is of may have any number of tokens when it lands."""
        return any(row.drafts for flight in self._flights for row in flight.plan.rows)

    def ends(self, request: Request, window_tokens: int) -> bool:
        """Will the request have reached its length, when what is in flight of it has landed?"""
        rows = self._rows(request)
        if request.max_tokens == 0:
            return request.computed + sum(row.tokens for row in rows) >= request.prompt_tokens
        known = len(request.tokens) + sum(row.samples for row in rows)
        return known >= min(request.prompt_tokens + request.max_tokens, window_tokens)

    def outgrown(self, request: Request) -> bool:
        """Is there no room in its blocks for the KV of all its tokens, the one that is being drawn included?

        One that is_allocating has not all of its blocks yet, and those that it lacks are pledged to it.
        """
        if request.is_allocating:
            return False
        known = len(request.tokens) + sum(row.samples for row in self._rows(request))
        return known > len(request.block_table) * BLOCK_TOKENS

    def _rows(self, request: Request) -> list[ScheduledRow]:
        return [
            row
            for flight in self._flights
            for row in flight.plan.rows
            if row.request is request and flight.standing(request) is Standing.LIVE
        ]
