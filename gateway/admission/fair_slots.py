"""A bounded number of slots, shared fairly: those who wait are served tenant by tenant, in turn."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class FairSlots:
    """For one event loop. However many calls of one tenant wait, another's waits for one round of the tenants."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def slot(self, tenant_id: str) -> AsyncIterator[None]:
        """Hold a slot for the time of the block.

        Raises:
            Exception: what `turn_away` made, while this waited.
        """
        await self._take(tenant_id)
        try:
            yield
        finally:
            self._pass_on()

    def turn_away(self, error: Callable[[], Exception]) -> None:
        """Raise an error in all who wait."""
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
                self._pass_on()  # the slot came together with the cancellation
            raise

    def _pass_on(self) -> None:
        """The slot goes to the next tenant's oldest waiter, and that tenant to the end of the line."""
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
