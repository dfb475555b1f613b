"""Whose grammar is compiled next: tenants take turns, each with a queue of its own."""

from collections import Counter, OrderedDict, deque
from typing import Generic, TypeVar

J = TypeVar("J")


class QueueFull(RuntimeError):
    """A tenant has as many jobs waiting as it may have."""


class TenantQueues(Generic[J]):
    """Jobs that wait, by tenant, and how many of each tenant run. For one thread at a time.

    Tenants are served round robin. One that has a job running gets another only where no other tenant waits.
    """

    def __init__(self, max_waiting: int) -> None:
        """`max_waiting`: jobs of one tenant."""
        self._max_waiting = max_waiting
        self._waiting: OrderedDict[str, deque[J]] = OrderedDict()
        self._running: Counter[str] = Counter()

    @property
    def running(self) -> int:
        return self._running.total()

    def add(self, tenant: str, job: J) -> None:
        """
        Raises:
            QueueFull: the tenant has too many waiting.
        """
        queue = self._waiting.setdefault(tenant, deque())
        if len(queue) >= self._max_waiting:
            raise QueueFull(f"{len(queue)} grammars wait to be compiled already")
        queue.append(job)

    def start(self) -> tuple[str, J] | None:
        """Whose turn it is, and its job, which counts as running until `end`; None where none waits."""
        if not self._waiting:
            return None
        tenant = next((each for each in self._waiting if not self._running[each]), next(iter(self._waiting)))
        queue = self._waiting.pop(tenant)
        job = queue.popleft()
        if queue:
            self._waiting[tenant] = queue  # behind all others
        self._running[tenant] += 1
        return tenant, job

    def end(self, tenant: str) -> None:
        """A job of the tenant has ended."""
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def clear(self) -> list[J]:
        """Jobs that waited; none does any more."""
        jobs = [job for queue in self._waiting.values() for job in queue]
        self._waiting.clear()
        return jobs
