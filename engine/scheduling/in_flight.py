"""The steps that were launched and are not complete, and which of their rows are dropped.

A step may be planned and launched before the previous one is complete (asynchronous scheduling). The host then knows
everything about the previous result except the sampled token ids, which stay on the device. It does not know either
which requests end: by a stop token, by a failure, or by an abort. The row in flight of such a request is dropped when
its step completes. Nor does it know how many drafts are accepted: the row that follows them is planned as if all were.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from engine.request import Request
from engine.scheduling.drafting import can_be_followed
from engine.scheduling.plan import StepPlan


class DropReason(Enum):
    """Why a row in flight is dropped. The reason decides who is charged for the row's share of the step's time.

    `ABORTED`: the request was ended from outside. Its tenant is charged service, as the row was computed for it. The
    request's usage is already reported, so the time is wasted.
    `SURPLUS`: the row follows a token at which the request ended, or a step that failed. Its time is wasted.
    `PREEMPTED`: the request was preempted. The class that caused it is charged the time. No tenant is charged service:
    the request computes the same tokens again and is charged then.
    `PAUSED`: the request was paused, or preempted from outside, and is charged the time itself.
    """

    ABORTED = auto()
    SURPLUS = auto()
    PREEMPTED = auto()
    PAUSED = auto()


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A launched step. `dropped`: requests whose rows in this step are dropped. Some may have no row in it.
    `rejected`: drafts of the step before that were rejected, by request: its row begins as many tokens earlier than
    planned."""

    plan: StepPlan
    dropped: dict[Request, DropReason] = field(default_factory=dict)
    rejected: dict[Request, int] = field(default_factory=dict)


class InFlightSteps:
    """The steps in flight, in launch order. They complete in the same order."""

    def __init__(self) -> None:
        self._steps: deque[InFlightStep] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def have_drafts(self) -> bool:
        """Whether a row in flight has drafts. How many of them are accepted is not known before its step completes."""
        return any(step.plan.draft_tokens for step in self._steps)

    @property
    def can_be_followed(self) -> bool:
        """Whether a step may be planned before the number of accepted drafts is known: see `drafting`."""
        return all(can_be_followed(row) for step in self._steps if step.plan.draft_tokens for row in step.plan.rows)

    def launch(self, plan: StepPlan) -> None:
        """Add the newest step."""
        self._steps.append(InFlightStep(plan))

    def complete(self, plan: StepPlan) -> InFlightStep:
        """Remove the oldest step, which is that of `plan`."""
        assert self._steps, "this is not the plan in flight: there is none"
        assert plan is self._steps[0].plan, "this is not the plan in flight that was launched first"
        return self._steps.popleft()

    def drop(self, request: Request, reason: DropReason) -> None:
        """Drop all rows in flight of the request. A row that was dropped before keeps its reason."""
        if request.scheduled > request.computed:
            for step in self._steps:
                step.dropped.setdefault(request, reason)

    def have_row_of(self, request: Request) -> bool:
        """Whether a row of the request is in flight, also one that is dropped."""
        return any(row.request is request for step in self._steps for row in step.plan.rows)

    def reject(self, request: Request, drafts: int) -> None:
        """Drafts of the oldest row of a request were rejected, in a step that has just completed: a row that follows it
        begins as many tokens earlier."""
        if drafts:
            for step in self._steps:
                step.rejected[request] = drafts

    def check(self, running: Iterable[Request]) -> None:
        """Each running request's rows in flight cover the tokens from `computed` to `scheduled`, in order."""
        ends = {request: request.computed for request in running}
        for step in self._steps:
            for row in step.plan.rows:
                if row.request not in step.dropped:
                    start = row.start - step.rejected.get(row.request, 0)
                    assert start == ends.get(row.request), f"{row.request.id} has a row in flight out of order"
                    ends[row.request] = start + row.tokens
        for request, end in ends.items():
            assert request.scheduled == end, f"{request.id} is scheduled up to {request.scheduled}, in flight to {end}"
