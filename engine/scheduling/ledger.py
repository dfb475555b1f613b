"""What each class and each request has cost: time, to the nanosecond, and preemptions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from engine.scheduling.cost import StepCostModel, StepWork, row_work, total
from engine.scheduling.plan import ScheduledRow


@dataclass(slots=True)
class ClassAccount:
    """The running totals of one class."""

    attributed_ns: int = 0
    recompute_ns: int = 0
    recomputed_tokens: int = 0
    preemptions_caused: int = 0
    preemptions_suffered: int = 0


def repeated_tokens(row: ScheduledRow) -> int:
    """How many of a row's tokens had been computed before their request was preempted."""
    return max(0, min(row.start + row.tokens, row.request.high_water_tokens) - row.start)


def _work(row: ScheduledRow) -> StepWork:
    """`row_work` of a row. Most have one token, and a tuple made by itself takes a third of the time."""
    _, start, tokens, _ = row
    return cast(StepWork, (1, start + 1, 0, 1)) if tokens == 1 else row_work(start, tokens)


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

    def charge(self, rows: Sequence[ScheduledRow], elapsed_ns: int) -> None:
        """Book a step, before its rows are taken in: they still say what of it was repeated."""
        repeated = [
            (index, repeated_tokens(row)) for index, row in enumerate(rows) if row[1] < row[0].high_water_tokens
        ]
        for index, count in repeated:
            self.accounts[rows[index].request.preempted_by].recomputed_tokens += count
        if not elapsed_ns:
            return
        works = list(map(_work, rows))
        self._cost_model.observe(total(works), elapsed_ns)
        shares_ns = self._cost_model.split_ns(works, elapsed_ns)
        for index, count in repeated:
            row = rows[index]
            repeated_ns = shares_ns[index] * count // row.tokens
            shares_ns[index] -= repeated_ns
            request = row.request
            name = self._names[request.preempted_by]
            request.recompute_ns[name] = request.recompute_ns.get(name, 0) + repeated_ns
            cause = self.accounts[request.preempted_by]
            cause.attributed_ns += repeated_ns
            cause.recompute_ns += repeated_ns
        own_ns = [0] * len(self.accounts)
        for row, share_ns in zip(rows, shares_ns, strict=True):
            request = row[0]
            request.engine_ns += share_ns
            own_ns[request.rank] += share_ns
        for account, attributed_ns in zip(self.accounts, own_ns, strict=True):
            account.attributed_ns += attributed_ns
