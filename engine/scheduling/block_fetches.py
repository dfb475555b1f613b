"""Requests that wait for KV blocks of the second pool, and the copies of the pool."""

from collections.abc import Callable, Sequence

from engine.memory.tiers.orders import Order, Report
from engine.memory.tiers.stats import TierStats
from engine.memory.tiers.tier import KVTier
from engine.request import Request
from engine.scheduling.cost import StepCostModel
from engine.scheduling.request_table import RequestTable


def computing_time(cost_model: StepCostModel) -> Callable[[int, int], int]:
    """Predicts the nanoseconds that computing tokens adds to steps: (first position, tokens)."""
    return lambda start, tokens: int(cost_model.row_ns(start, tokens))


class BlockFetches:
    """Calls of the loop of steps for the second pool: `update` before each launch and whenever it is due, and `report`
    for each report of the copier."""

    def __init__(self, tier: KVTier, requests: RequestTable) -> None:
        self._tier = tier
        self._requests = requests

    @property
    def waiting(self) -> int:
        """Requests that wait for blocks."""
        return self._requests.awaiting_blocks

    @property
    def next_due_ns(self) -> int | None:
        """When `update` has something to do, if nothing happens before."""
        return self._tier.next_due_ns

    @property
    def is_copying(self) -> bool:
        """Whether the copier owes a report."""
        return self._tier.is_copying

    def holds_blocks(self, *, alone: bool) -> bool:
        """Whether running requests that lack a block wait for one that is being copied. `alone`: one runs."""
        return bool(self._tier.lent_blocks or (alone and self._tier.fetching_blocks))

    def awaits(self, request: Request) -> bool:
        """Whether the request waits for blocks."""
        return self._requests.awaits_blocks(request)

    def update(self, now_ns: int) -> Sequence[Order]:
        """The orders to hand to the copier now. Requests whose fetch is late return to their queues."""
        for fetch in self._tier.overdue(now_ns):
            self._requests.end_fetch(fetch)
        return self._tier.update(now_ns)

    def report(self, report: Report, now_ns: int) -> None:
        """Take a report of the copier. The requests of a fetch that has ended return to their queues."""
        fetch = self._tier.report(report, now_ns)
        if fetch is not None:
            self._requests.end_fetch(fetch)

    def forget_tenant(self, salt: bytes) -> None:
        """Drop and erase all that is stored of the tenant with this salt."""
        self._tier.forget_tenant(salt)

    def stats(self) -> TierStats:
        """The metrics. Thread-safe."""
        return self._tier.stats(self.waiting)
