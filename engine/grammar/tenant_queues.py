"""Round-robin queues of grammar compilations, one for each tenant."""

from collections import Counter, OrderedDict, deque
from typing import Generic, TypeVar

J = TypeVar("J")


class QueueFull(RuntimeError):
    """The tenant has reached its maximum of queued jobs."""


class TenantQueues(Generic[J]):
    """Queued jobs by tenant, and the number of running jobs of each. Callers synchronise.

    Tenants are served round robin. A tenant with a running job gets another one only if no other tenant waits.
    """

    def __init__(self, max_waiting: int) -> None:
        """`max_waiting`: queued jobs of one tenant."""
        self._max_waiting = max_waiting
        self._waiting: OrderedDict[str, deque[J]] = OrderedDict()
        self._running: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """Running jobs of all tenants."""
        return self._running.total()

    def add(self, tenant: str, job: J) -> None:
        """Queue a job of a tenant.

        Raises:
            QueueFull: the tenant has `max_waiting` jobs queued.
        """
        queue = self._waiting.setdefault(tenant, deque())
        if len(queue) >= self._max_waiting:
            raise QueueFull(f"too many grammars are being compiled: {len(queue)} are queued")
        queue.append(job)

    def start(self) -> tuple[str, J] | None:
        """The next tenant and its job, which counts as running until `end`; None if no job is queued."""
        if not self._waiting:
            return None
        tenant = next((waiting for waiting in self._waiting if not self._running[waiting]), next(iter(self._waiting)))
        queue = self._waiting.pop(tenant)
        job = queue.popleft()
        if queue:
            self._waiting[tenant] = queue  # to the end of the round
        self._running[tenant] += 1
        return tenant, job

    def end(self, tenant: str) -> None:
        """Record that a job of the tenant has finished."""
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def clear(self) -> list[J]:
        """Remove all queued jobs and return them."""
        jobs = [job for queue in self._waiting.values() for job in queue]
        self._waiting.clear()
        return jobs
