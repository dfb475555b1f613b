"""A bounded number of slots with round-robin queueing by tenant."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class FairSlots:
    """For one event loop. However many calls one tenant has queued, another tenant's call waits for at most one round
    of the tenants."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Number of queued calls."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def slot(self, tenant_id: str) -> AsyncIterator[None]:
        """Hold a slot for the duration of the block.

        Raises:
            Exception: the one made by `turn_away` while this call was queued.
        """
        await self._take(tenant_id)
        try:
            yield
        finally:
            self._pass_on()

    def turn_away(self, error: Callable[[], Exception]) -> None:
        """Raise an error in all queued calls."""
        for waiters in self._waiting.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error())
        self._waiting.clear()

    async def _take(self, tenant_id: str) -> None:
        if self._free:
            self._free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._forget(tenant_id, waiter)
            elif waiter.exception() is None:
                self._pass_on()  # the slot was handed over at the moment of the cancellation
            raise

    def _pass_on(self) -> None:
        """Hand the slot to the next tenant's oldest call, and move that tenant to the end of the queue."""
        while self._waiting:
            tenant_id, waiters = self._waiting.popitem(last=False)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[tenant_id] = waiters
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1

    def _forget(self, tenant_id: str, waiter: "asyncio.Future[None]") -> None:
        waiters = self._waiting.get(tenant_id)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[tenant_id]
