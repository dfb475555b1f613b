"""What each class and each request has cost: time, to the nanosecond, and preemptions."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.request import Request
from engine.scheduling.cost import StepCostModel, step_work
from engine.scheduling.flight import Fate, Flight
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
    """Divides the time of each step among its rows, and that of work repeated to the class that was the cause.

    `names` are those of the classes, the highest first.
    """

    def __init__(self, names: Sequence[str], cost_model: StepCostModel) -> None:
        self._names = names
        self.accounts = [ClassAccount() for _ in names]
        self._cost_model = cost_model

    def preempted(self, victim_rank: int, cause_rank: int) -> None:
        self.accounts[victim_rank].preemptions_suffered += 1
        self.accounts[cause_rank].preemptions_caused += 1

    def charge(self, flight: Flight, elapsed_ns: int) -> None:
        """Book a step, before its rows are taken in: they still say what of it was repeated."""
        rows, dropped = flight.plan.rows, flight.dropped
        starts, tokens = [row[1] for row in rows], [row[2] for row in rows]
        self._cost_model.observe(step_work(starts, tokens), elapsed_ns)
        own_ns = [0] * len(self.accounts)
        for row, share_ns in zip(rows, self._cost_model.split_ns(starts, tokens, elapsed_ns), strict=True):
            request = row[0]
            if dropped and request in dropped:
                share_ns = self._charge_dropped(row, share_ns, dropped[request])
            elif row[1] < request.high_water_tokens:
                share_ns -= self._charge_repeated(row, share_ns)
            request.engine_ns += share_ns
            own_ns[request.rank] += share_ns
        for account, attributed_ns in zip(self.accounts, own_ns, strict=True):
            account.attributed_ns += attributed_ns

    def charge_drafting(self, requests: Sequence[Request], elapsed_ns: int) -> None:
        """Book the time that guessing the next tokens of some requests took: to each as much, to the nanosecond."""
        for index, request in enumerate(requests):
            share_ns = elapsed_ns * (index + 1) // len(requests) - elapsed_ns * index // len(requests)
            request.engine_ns += share_ns
            self.accounts[request.rank].attributed_ns += share_ns

    def _charge_dropped(self, row: ScheduledRow, share_ns: int, fate: Fate) -> int:
        """Book the time of a row that comes to nothing, and return what of it its request bears."""
        request, start, tokens, _, _ = row
        match fate:
            case Fate.PREEMPTED:
                self._charge_to_cause(request, tokens, share_ns)
                return 0
            case Fate.PAUSED:
                repeats = start < request.high_water_tokens
                return share_ns - self._charge_repeated(row, share_ns) if repeats else share_ns
        self._waste(request, share_ns)
        return 0

    def waste(self, rows: Sequence[ScheduledRow], elapsed_ns: int) -> None:
        """Book a step of which nothing came. Its time says nothing of what steps take."""
        starts, tokens = [row[1] for row in rows], [row[2] for row in rows]
        for row, share_ns in zip(rows, self._cost_model.split_ns(starts, tokens, elapsed_ns), strict=True):
            self._waste(row[0], share_ns)

    def _waste(self, request: Request, share_ns: int) -> None:
        account = self.accounts[request.rank]
        account.wasted_rows += 1
        account.wasted_ns += share_ns
        account.attributed_ns += share_ns

    def _charge_repeated(self, row: ScheduledRow, share_ns: int) -> int:
        """Book the repeated part of a row's time to the class that was the cause, and return it."""
        request, start, tokens, _, _ = row
        count = min(start + tokens, request.high_water_tokens) - start
        repeated_ns = share_ns * count // tokens
        self._charge_to_cause(request, count, repeated_ns)
        return repeated_ns

    def _charge_to_cause(self, request: Request, tokens: int, repeated_ns: int) -> None:
        if repeated_ns:
            name = self._names[request.preempted_by]
            request.recompute_ns[name] = request.recompute_ns.get(name, 0) + repeated_ns
        cause = self.accounts[request.preempted_by]
        cause.recomputed_tokens += tokens
        cause.attributed_ns += repeated_ns
        cause.recompute_ns += repeated_ns
