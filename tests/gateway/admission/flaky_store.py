"""A shared store in this process that answers late, or not at all, by the loop's time."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from gateway.admission import LimitState, MemoryStore, Quota, Settlement, StoreAway
from gateway.admission.model import Committed, Hold, HoldRefusal, HoldRequest, Use

T = TypeVar("T")


class FlakyStore:
    """A `SharedStore` by the loop's clock. Scripts run as they arrive, one network latency before their answer."""

    def __init__(self) -> None:
        self.store = MemoryStore(lambda: round(asyncio.get_running_loop().time() * 1000))
        self.latency_s = 0.001
        self.refuses = False
        """Like a full Redis, or one that is not there: an error at once."""
        self.drops_answers = False
        """Scripts run, and nothing comes back."""
        self.silent = False
        """Nothing arrives, and nothing comes back."""
        self.arrived: Counter[str] = Counter()

    async def hold(self, request: HoldRequest) -> Hold | HoldRefusal:
        return await self._over_the_network("hold", self.store.hold(request))

    async def extend(self, hold: Hold) -> bool:
        return await self._over_the_network("extend", self.store.extend(hold))

    async def settle(self, hold: Hold, use: Use) -> Settlement:
        return await self._over_the_network("settle", self.store.settle(hold, use))

    async def usage(self, quotas: Sequence[Quota]) -> tuple[LimitState, ...]:
        return await self._over_the_network("usage", self.store.usage(quotas))

    async def restore(self, known: Sequence[Committed]) -> None:
        await self._over_the_network("restore", self.store.restore(known))

    async def probe(self) -> None:
        async def answer() -> None:
            pass

        await self._over_the_network("probe", answer())

    def counts(self) -> dict[str, int]:
        return {}

    async def aclose(self) -> None:
        self.store.check()

    async def _over_the_network(self, what: str, script: Awaitable[T]) -> T:
        task = asyncio.ensure_future(script)
        if self.refuses:
            task.cancel()
            raise StoreAway("refused")
        if self.silent:
            task.cancel()
            await asyncio.Event().wait()
        answer = await task
        self.arrived[what] += 1
        if self.drops_answers:
            await asyncio.Event().wait()
        await asyncio.sleep(self.latency_s)
        for _ in range(2):
            await asyncio.sleep(0)  # the loop reads the socket, and the client the answer
        return answer
