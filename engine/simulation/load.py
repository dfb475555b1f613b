"""Open-loop load in virtual time: arrivals do not wait for answers, and a step takes its predicted time."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.request import Request
from engine.scheduling import RowResult, Scheduler, StepResult
from engine.scheduling.cost import StepCostModel, row_work, total


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """A request and its arrival in virtual time."""

    at_ns: int
    request: Request


@dataclass(slots=True)
class LoadReport:
    """`ttft_ns`: time to first token, by request id. `served`: service, by tenant."""

    ttft_ns: dict[str, int] = field(default_factory=dict)
    served: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, int]] = field(default_factory=list)
    """`served` of the rivals after each step in which all of them had waiting requests."""
    steps: int = 0
    elapsed_ns: int = 0
    busy_ns: int = 0


def run_load(
    scheduler: Scheduler,
    cost_model: StepCostModel,
    arrivals: Sequence[TimedRequest],
    *,
    until_ns: int,
    rivals: Sequence[str] = (),
) -> LoadReport:
    """Serve `arrivals`, in order of time, until the clock reaches `until_ns`. Every sampled token is 1.

    Service is counted as in VTC: 1 per computed input token, 2 per output token. `cost_model` gives the true step times
    and does not learn; the scheduler has its own. `rivals`: tenants to record samples for.
    """
    report, pending, now_ns = LoadReport(), deque(arrivals), 0
    arrived: dict[str, int] = {}
    while now_ns < until_ns:
        while pending and pending[0].at_ns <= now_ns:
            timed = pending.popleft()
            arrived[timed.request.id] = timed.at_ns
            scheduler.add(timed.request, timed.at_ns)
        plan = scheduler.schedule(now_ns, limits=scheduler.step_limits(now_ns))
        if plan is None:
            if not pending:
                break
            now_ns = pending[0].at_ns
            continue
        elapsed_ns = cost_model.predict_ns(total(row_work(row.start, row.tokens) for row in plan.rows))
        now_ns += elapsed_ns
        report.busy_ns += elapsed_ns
        rows = tuple(RowResult(token=1 if row.samples else None) for row in plan.rows)
        for row in plan.rows:
            first = max(row.start, row.request.high_water_tokens)
            inputs = max(0, min(row.start + row.tokens, row.request.prompt_tokens) - first)
            report.served[row.request.tenant] += inputs + 2 * row.samples
            if row.samples and row.request.output_tokens == 0:
                report.ttft_ns[row.request.id] = now_ns - arrived[row.request.id]
        scheduler.commit(plan, StepResult(rows), elapsed_ns=elapsed_ns)
        if rivals:
            waiting = {request.tenant for queue in scheduler.waiting_queues for request in queue}
            if waiting.issuperset(rivals):
                report.samples.append({tenant: report.served[tenant] for tenant in rivals})
        report.steps += 1
    report.elapsed_ns = now_ns
    return report
