"""Assigns the slots of adapters to the requests that wait for one."""

from collections.abc import Sequence

from engine.request import Fault, Phase, Request, TokenDelta
from engine.scheduling.adapter_queue import AdapterLoad, AdapterStats
from engine.scheduling.commit import Committer
from engine.scheduling.planner import Planner
from engine.scheduling.request_table import RequestTable
from engine.scheduling.stopping import ends_in_flight


class AdapterAssignment:
    """Calls of the loop of steps for adapters: `update` before each step, and `loaded` or `fail` for each load."""

    def __init__(self, requests: RequestTable, planner: Planner, committer: Committer, wait_ns: int) -> None:
        """`wait_ns`: maximum wait for an adapter, after which a request fails."""
        self._requests = requests
        self._queue = requests.adapters
        self._planner = planner
        self._committer = committer
        self._wait_ns = wait_ns

    @property
    def slots(self) -> int:
        """Adapters that can be resident at once; 0: the model takes none."""
        return self._queue.pool.slots

    @property
    def waiting(self) -> int:
        """Requests whose adapter is not resident."""
        return len(self._queue)

    @property
    def changed(self) -> bool:
        """Whether `update` has something to do."""
        return self._queue.changed

    def update(self, now_ns: int = 0) -> list[AdapterLoad]:
        """Queue the requests whose adapter is resident now, and assign slots to those that wait for another one: the
        loads to begin. May preempt requests of lower classes, as far as the tenant's preemption budget allows."""
        queue = self._queue
        if not queue.changed:
            return []
        self._requests.now_ns = now_ns
        queue.changed = False
        queue.end_drains()
        self._requests.unpark()
        loads = []
        for first in queue.firsts():
            load = queue.claim(first)
            if load is None and self._displace(queue.outranked_by(first), first):
                load = queue.claim(first)
            if load is None:
                queue.drain_for(first)
            else:
                loads.append(load)
        queue.end_drains()
        self._requests.unpark()  # those that were held back for what is drained no more
        return loads

    def loaded(self, digest: str) -> None:
        """An adapter is in its slot, and every later step can use it."""
        self._queue.pool.loaded(digest)
        self._queue.changed = True

    def fail(self, digest: str) -> list[TokenDelta]:
        """An adapter could not be loaded: all requests that wait for it fail."""
        self._queue.pool.fail(digest)
        self._queue.changed = True
        return self._end(self._queue.waiting_for(digest))

    def expire(self, now_ns: int) -> list[TokenDelta]:
        """Fail the requests that have waited too long for their adapter."""
        if not self._queue.waits:
            return []
        return self._end(self._queue.overdue(now_ns - self._wait_ns))

    def stats(self) -> AdapterStats:
        """The metrics. Thread-safe."""
        return self._queue.stats()

    def _displace(self, holders: Sequence[Request], first: Request) -> bool:
        """Take the leases of these requests, and preempt those that run. False: nothing was changed, because the
        tenant's preemption budget is too small or a request ends in flight."""
        running = [holder for holder in holders if holder.phase is Phase.RUNNING]
        if not holders or any(map(ends_in_flight, running)):
            return False
        budget, step = self._planner.preemption_budget, self._planner.steps_total
        if len(running) > budget.left(first.tenant, step):
            return False
        if running:
            budget.spend(first.tenant, step, len(running))
        for holder in running:
            self._requests.preempt(holder, cause=first.rank)
        for holder in holders:
            self._requests.park(holder)
        return True

    def _end(self, requests: Sequence[Request]) -> list[TokenDelta]:
        """End those of which no row is in flight: their last usage is complete."""
        ended = [request for request in requests if not self._requests.in_flight.have_row_of(request)]
        return [self._committer.fail_request(request, Fault.ADAPTER) for request in ended]
