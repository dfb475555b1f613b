"""Accounting by class and request: engine time to the nanosecond, and preemptions."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.request import Request
from engine.scheduling.cost import StepCostModel, step_work
from engine.scheduling.in_flight import DropReason, InFlightStep
from engine.scheduling.plan import ScheduledRow


@dataclass(slots=True)
class ClassAccount:
    """The running totals of one class."""

    attributed_ns: int = 0
    recompute_ns: int = 0
    recomputed_tokens: int = 0
    preemptions_caused: int = 0
    preemptions_suffered: int = 0
    wasted_rows: int = 0
    wasted_ns: int = 0


class Ledger:
    """Divides the time of each step among its rows. Recomputation is charged to the class that caused the preemption.

    `names`: the classes' names, by rank.
    """

    def __init__(self, names: Sequence[str], cost_model: StepCostModel) -> None:
        self._names = names
        self.accounts = [ClassAccount() for _ in names]
        self._cost_model = cost_model

    def record_preemption(self, victim_rank: int, cause_rank: int) -> None:
        """A request of `victim_rank` was preempted for one of `cause_rank`."""
        self.accounts[victim_rank].preemptions_suffered += 1
        self.accounts[cause_rank].preemptions_caused += 1

    def charge(self, step: InFlightStep, elapsed_ns: int) -> None:
        """Charge a step's time. Called before its rows are committed, when they still show what is recomputed."""
        rows, dropped = step.plan.rows, step.dropped
        starts, tokens = [row[1] for row in rows], [row[2] for row in rows]
        self._cost_model.observe(step_work(starts, tokens), elapsed_ns)
        own_ns = [0] * len(self.accounts)
        for row, share_ns in zip(rows, self._cost_model.split_ns(starts, tokens, elapsed_ns), strict=True):
            request = row[0]
            if dropped and request in dropped:
                share_ns = self._charge_dropped(row, share_ns, dropped[request])
            elif row[1] < request.high_water_tokens:
                share_ns -= self._charge_recomputed(row, share_ns)
            request.engine_ns += share_ns
            own_ns[request.rank] += share_ns
        for account, attributed_ns in zip(self.accounts, own_ns, strict=True):
            account.attributed_ns += attributed_ns

    def charge_drafting(self, requests: Sequence[Request], elapsed_ns: int) -> None:
        """Divide the time of drafting equally among its requests, to the nanosecond."""
        for index, request in enumerate(requests):
            share_ns = elapsed_ns * (index + 1) // len(requests) - elapsed_ns * index // len(requests)
            request.engine_ns += share_ns
            self.accounts[request.rank].attributed_ns += share_ns

    def _charge_dropped(self, row: ScheduledRow, share_ns: int, drop_reason: DropReason) -> int:
        """Charge the time of a dropped row, and return the part that its request is charged."""
        request, start, tokens, _, _ = row
        match drop_reason:
            case DropReason.PREEMPTED:
                self._charge_to_cause(request, tokens, share_ns)
                return 0
            case DropReason.PAUSED:
                recomputes = start < request.high_water_tokens
                return share_ns - self._charge_recomputed(row, share_ns) if recomputes else share_ns
        self._record_wasted(request, share_ns)
        return 0

    def record_wasted(self, rows: Sequence[ScheduledRow], elapsed_ns: int) -> None:
        """Charge a step without a result as wasted. The cost model does not learn from its time."""
        starts, tokens = [row[1] for row in rows], [row[2] for row in rows]
        for row, share_ns in zip(rows, self._cost_model.split_ns(starts, tokens, elapsed_ns), strict=True):
            self._record_wasted(row[0], share_ns)

    def _record_wasted(self, request: Request, share_ns: int) -> None:
        account = self.accounts[request.rank]
        account.wasted_rows += 1
        account.wasted_ns += share_ns
        account.attributed_ns += share_ns

    def _charge_recomputed(self, row: ScheduledRow, share_ns: int) -> int:
        """Charge the recomputed part of a row's time to the class that caused the preemption, and return it."""
        request, start, tokens, _, _ = row
        count = min(start + tokens, request.high_water_tokens) - start
        recompute_ns = share_ns * count // tokens
        self._charge_to_cause(request, count, recompute_ns)
        return recompute_ns

    def _charge_to_cause(self, request: Request, tokens: int, recompute_ns: int) -> None:
        if recompute_ns:
            name = self._names[request.preempted_by]
            request.recompute_ns[name] = request.recompute_ns.get(name, 0) + recompute_ns
        cause = self.accounts[request.preempted_by]
        cause.recomputed_tokens += tokens
        cause.attributed_ns += recompute_ns
        cause.recompute_ns += recompute_ns
