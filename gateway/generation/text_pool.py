"""A thread pool that tokenises and renders long texts, shared fairly among tenants (round robin)."""

import asyncio
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from starlette.types import Receive

from gateway.http.bounds import MAX_INLINE_CHARS
from gateway.http.errors import ClientGone

T = TypeVar("T")

THREADS = max(2, (os.cpu_count() or 1) // 4)
PER_TENANT = max(1, THREADS // 2)


@dataclass(eq=False, slots=True)
class _Job:
    work: Callable[[], Any]
    done: asyncio.Future[Any]


class TextPool:
    """For one event loop. `threads` jobs run at a time, at most `per_tenant` of one tenant.

    The jobs of a tenant run in order. Tenants with waiting jobs take turns, one job each, so a tenant delays another by
    no more than the jobs that are running. `executor` runs the jobs.
    """

    def __init__(
        self, executor: Executor | None = None, *, threads: int = THREADS, per_tenant: int = PER_TENANT
    ) -> None:
        self._executor = executor or ThreadPoolExecutor(threads, thread_name_prefix="turnpike-text")
        self._free = threads
        self._per_tenant = per_tenant
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        """By tenant, in the order of their turns. No queue is empty."""

    async def run(self, tenant_id: str, work: Callable[[], T]) -> T:
        """Run `work` on a thread; returns its result or raises its exception. A cancelled job that has not begun is
        dropped."""
        job = _Job(work, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(tenant_id, deque()).append(job)
        self._begin()
        try:
            result: T = await job.done
        except asyncio.CancelledError:
            self._drop(tenant_id, job)
            raise
        return result

    def counts(self) -> dict[str, int]:
        """For metrics. `running` includes jobs whose caller was cancelled, until they end."""
        return {"running": self._running.total(), "waiting": sum(map(len, self._waiting.values()))}

    def close(self) -> None:
        """Stop accepting jobs, without waiting for those that run."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while self._free and (tenant_id := self._next_tenant()) is not None:
            jobs = self._waiting[tenant_id]
            job = jobs.popleft()
            if jobs:
                self._waiting.move_to_end(tenant_id)
            else:
                del self._waiting[tenant_id]
            self._free -= 1
            self._running[tenant_id] += 1
            try:
                running: Future[Any] = self._executor.submit(job.work)
            except RuntimeError as error:  # the pool is closed
                running = Future()
                running.set_exception(error)
            asyncio.wrap_future(running).add_done_callback(partial(self._ended, tenant_id, job))

    def _next_tenant(self) -> str | None:
        return next((tenant for tenant in self._waiting if self._running[tenant] < self._per_tenant), None)

    def _ended(self, tenant_id: str, job: _Job, running: asyncio.Future[Any]) -> None:
        self._free += 1
        self._running[tenant_id] -= 1
        if not self._running[tenant_id]:
            del self._running[tenant_id]
        error = None if running.cancelled() else running.exception()
        if not job.done.done():
            if running.cancelled():
                job.done.cancel()
            elif error is not None:
                job.done.set_exception(error)
            else:
                job.done.set_result(running.result())
        self._begin()

    def _drop(self, tenant_id: str, job: _Job) -> None:
        jobs = self._waiting.get(tenant_id)
        if jobs is not None and job in jobs:
            jobs.remove(job)
            if not jobs:
                del self._waiting[tenant_id]


@dataclass(frozen=True, slots=True)
class TextLane:
    """The pool for one request: of its tenant, for as long as its client is connected."""

    pool: TextPool
    tenant_id: str
    receive: Receive = field(repr=False)

    async def run(self, chars: int, work: Callable[[], T]) -> T:
        """Run `work`, on the event loop if its text is short. `chars`: length of the text.

        Raises:
            ClientGone: the client disconnected before it ended.
        """
        if chars <= MAX_INLINE_CHARS:
            return work()
        return await _unless_gone(self.pool.run(self.tenant_id, work), self.receive)


async def _unless_gone(work: Awaitable[T], receive: Receive) -> T:
    working, watching = asyncio.ensure_future(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.wait((working, watching))


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
