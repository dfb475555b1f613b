"""Follows the steps in flight independently of the scheduler: the rows of each request, and whether they count."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import ceil

from engine.config import BLOCK_TOKENS
from engine.request import Phase, Request
from engine.scheduling import ScheduledRow, StepPlan, StepResult
from engine.scheduling.order import order_key


class Standing(Enum):
    """The effect of a row when its step completes.

    `LIVE`: its request advances. `LOST`: the request was preempted or paused; the row counts for nothing and no tenant
    is charged. `ABORTED`: the request was aborted; its tenant is charged. `SURPLUS`: the request had ended already.
    """

    LIVE = auto()
    LOST = auto()
    ABORTED = auto()
    SURPLUS = auto()


@dataclass(frozen=True, slots=True)
class _Launched:
    """A plan, with the number of stops of each of its requests at the launch. `dropped`: ids whose rows are surplus.
    `rejected`: by id, the drafts before its row that were rejected while it was in flight."""

    plan: StepPlan
    stops: dict[str, int]
    dropped: set[str] = field(default_factory=set)
    rejected: dict[str, int] = field(default_factory=dict)

    def standing(self, request: Request) -> Standing:
        if request.id in self.dropped:
            return Standing.SURPLUS
        if _stops(request) != self.stops[request.id]:
            return Standing.LOST
        return Standing.ABORTED if request.phase is Phase.FINISHED else Standing.LIVE


def _depends_on_tokens(request: Request) -> bool:
    params = request.params
    neutral = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
    return (
        request.matcher is not None
        or len(request.tokens) - request.prompt_tokens < params.min_tokens - 1
        or not neutral
    )


def _stops(request: Request) -> int:
    """How often the request lost its slot and blocks."""
    return request.preemptions + request.pauses


class InFlightAuditor:
    """Derives each row's standing from the requests and the launched plans, not from the scheduler's records."""

    def __init__(self, *, plain: bool) -> None:
        """`plain`: whether the model has neither recurrent states nor windows."""
        self._plain = plain
        self._rejected: dict[str, int] = {}
        """Of the step that completed last."""
        self._steps: deque[_Launched] = deque()
        self.wasted_rows = 0

    def on_launch(self, plan: StepPlan) -> None:
        """A step was launched."""
        self._steps.append(_Launched(plan, {row.request.id: _stops(row.request) for row in plan.rows}))

    def on_complete(self, plan: StepPlan) -> dict[str, Standing]:
        """The standing of each row of the oldest plan in flight, by request id, before its result is committed."""
        step = self._steps.popleft()
        assert step.plan is plan, "a step completes before one that was launched earlier"
        self._rejected = step.rejected
        standings = {row.request.id: step.standing(row.request) for row in plan.rows}
        self.wasted_rows += sum(standing in (Standing.SURPLUS, Standing.ABORTED) for standing in standings.values())
        return standings

    def on_step_failure(self, standings: Mapping[str, Standing]) -> None:
        """The completed step was undone, so later rows in flight of its requests are surplus."""
        live = [request_id for request_id, standing in standings.items() if standing is Standing.LIVE]
        lost = [request_id for request_id, standing in standings.items() if standing is Standing.LOST]
        self.wasted_rows += len(live) + len(lost)
        self.drop_rows(live)

    def drop_rows(self, request_ids: Iterable[str]) -> None:
        """The rows in flight of these requests are surplus."""
        ids = list(request_ids)
        for step in self._steps:
            step.dropped.update(ids)

    def reject(self, plan: StepPlan, result: StepResult) -> None:
        """Rows that follow the drafts of a completed step begin where the accepted ones end."""
        for row, outcome in zip(plan.rows, result.rows, strict=True):
            for step in self._steps:
                step.rejected[row.request.id] = len(row.drafts) - outcome.accepted

    def start_of(self, row: ScheduledRow) -> int:
        """Where a row of the step that completed last began."""
        return row.start - self._rejected.get(row.request.id, 0)

    def pending(self, request: Request) -> int:
        """Tokens of the request's rows in flight."""
        return sum(row.tokens for row in self._rows(request))

    @property
    def have_drafts(self) -> bool:
        """Whether a row with drafts is in flight."""
        return any(row.drafts for step in self._steps for row in step.plan.rows)

    @property
    def await_drafts(self) -> bool:
        """Whether a row with drafts is in flight whose tokens the next step has to know."""
        drafted = [row.request for step in self._steps for row in step.plan.rows if row.drafts]
        return any(not self._plain or _depends_on_tokens(request) for request in drafted)

    def left_out(
        self, running: Sequence[Request], before: Mapping[str, Request], plan: StepPlan, stages: int
    ) -> list[Request]:
        """The running requests that a step of a pipeline has no row of: those whose token is in flight, and those of
        the others in decode that are behind the first 1/`stages` of all in decode. `before`: those that ran before this
        step was planned. The others were admitted with it, and are in it in any case. Where some were preempted for
        them, these may have been among the first."""
        if stages == 1:
            return []
        rows = {row.request.id: row for row in plan.rows}
        known = {request.id: request.computed + self.pending(request) for request in running}
        left = {request.id: len(request.tokens) - known[request.id] for request in running if request.id in before}
        decoding = [request for request in sorted(running, key=order_key) if left.get(request.id, 2) <= 1]
        ready = [request for request in decoding if left[request.id] == 1]
        share = ceil(len(decoding) / stages)
        preempted = sum(request.phase is not Phase.RUNNING for request in before.values())
        if preempted:
            planned = sum(request.id in rows for request in ready)
            assert planned <= ceil((len(decoding) + preempted) / stages), "a step of a pipeline has too many rows"
            share = planned
        assert all(rows[request.id].start == known[request.id] for request in running if request.id in rows)
        return [request for request in decoding if left[request.id] <= 0] + ready[share:]

    def awaits_token(self, request: Request) -> bool:
        """Whether the rows in flight of a request reach its last known token."""
        return request.computed + self.pending(request) >= len(request.tokens)

    def ends(self, request: Request, window_tokens: int) -> bool:
        """Whether the request reaches its length with its rows in flight."""
        rows = self._rows(request)
        if request.max_tokens == 0:
            return request.computed + sum(row.tokens for row in rows) >= request.prompt_tokens
        known = len(request.tokens) + sum(row.samples + len(row.drafts) for row in rows)
        return known >= min(request.prompt_tokens + request.max_tokens, window_tokens)

    def needs_block(self, request: Request) -> bool:
        """Whether the KV of the request's tokens, including the one being sampled, exceeds its blocks.

        False while it is allocating: its missing blocks are pledged to it.
        """
        if request.is_allocating:
            return False
        known = len(request.tokens) + sum(row.samples + len(row.drafts) for row in self._rows(request))
        return known > len(request.block_table) * BLOCK_TOKENS

    def _rows(self, request: Request) -> list[ScheduledRow]:
        return [
            row
            for step in self._steps
            for row in step.plan.rows
            if row.request is request and step.standing(request) is Standing.LIVE
        ]
