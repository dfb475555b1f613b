"""The load of an upstream as this gateway sees it: requests in flight, its own queue, predicted waits."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engine.runtime.reservation import UNKNOWN_PROMPT, ExpectedPrompt, Reservation

AVERAGED = 0.1
"""Weight of the newest value in a moving average."""
FIRST_TOKEN_S = 0.5
REQUEST_S = 2.0
"""Assumed until the first request has been measured."""

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class UpstreamWait:
    """As `gateway.generation.engine_client.PredictedWait`."""

    first_token_ns: int
    drain_ns: int


class UpstreamLoad:
    """For one event loop. `ranks`: how many service classes there are; rank 0 is served first.

    At most `max_concurrent` requests are in flight. Others wait: those of higher classes first, the tenants of a class
    in turn.
    """

    def __init__(self, max_concurrent: int, ranks: int, now_s: Callable[[], float]) -> None:
        self.max_concurrent = max_concurrent
        self.in_flight = 0
        self._now_s = now_s
        self._queues: list[OrderedDict[str, deque[asyncio.Future[None]]]] = [OrderedDict() for _ in range(ranks)]
        self._reserved: dict[Reservation, int] = {}
        self._reserved_by_rank = [0] * ranks
        self.first_token_s: float | None = None
        """Moving average; None until an answer has begun."""
        self.request_s: float | None = None
        """Moving average of the time in flight, of answers that ended well; None until one has."""

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return sum(len(waiters) for queue in self._queues for waiters in queue.values())

    @property
    def reservations(self) -> int:
        """Open reservations."""
        return len(self._reserved)

    @property
    def queue_depth(self) -> int:
        """Requests that wait, and reserved ones that will find no free slot."""
        free = max(0, self.max_concurrent - self.in_flight)
        return self.waiting + max(0, sum(self._reserved_by_rank) - free)

    def predicted_wait(self, rank: int) -> UpstreamWait:
        """The wait of a request of this class: for a slot, by the time that requests take, and for its first token."""
        ahead = self._ahead(rank)
        free = self.max_concurrent - self.in_flight - self.waiting
        request_s = REQUEST_S if self.request_s is None else self.request_s
        first_token_s = FIRST_TOKEN_S if self.first_token_s is None else self.first_token_s
        missing = max(0, ahead + 1 - max(0, free))
        slot_s = missing * request_s / self.max_concurrent
        return UpstreamWait(round(_NS * (slot_s + first_token_s)), round(_NS * slot_s))

    def reserve(self, rank: int) -> Reservation:
        """A place in the queue, as `EngineClient.reserve` has it."""
        reservation = Reservation(rank, self._rebook)
        reservation.expect([UNKNOWN_PROMPT])
        return reservation

    @asynccontextmanager
    async def slot(self, rank: int, tenant: str) -> AsyncIterator[None]:
        """Hold a slot for the duration of the block."""
        await self._take(rank, tenant)
        began_s = self._now_s()
        try:
            yield
            self.request_s = _averaged(self.request_s, self._now_s() - began_s)
        finally:
            self._pass_on()

    def on_first_token(self, seconds: float) -> None:
        """An answer has begun this long after its request was sent."""
        self.first_token_s = _averaged(self.first_token_s, seconds)

    def check(self) -> None:
        """Assert that the sums are those of the reservations, that no slot is lost, and that nothing that has ended
        waits."""
        sums = [0] * len(self._reserved_by_rank)
        for reservation, prompts in self._reserved.items():
            sums[reservation.rank] += prompts
        assert sums == self._reserved_by_rank, "the sums differ from the reservations"
        assert 0 <= self.in_flight <= self.max_concurrent, "slots are lost"
        waiters = [each for queue in self._queues for of_tenant in queue.values() for each in of_tenant]
        assert not any(each.done() for each in waiters), "requests that have ended wait"
        assert not waiters or self.in_flight == self.max_concurrent, "requests wait for a free slot"

    def _ahead(self, rank: int) -> int:
        queued = sum(len(waiters) for queue in self._queues[: rank + 1] for waiters in queue.values())
        return queued + sum(self._reserved_by_rank[: rank + 1])

    def _rebook(self, reservation: Reservation, prompts: Sequence[ExpectedPrompt]) -> None:
        self._reserved_by_rank[reservation.rank] -= self._reserved.pop(reservation, 0)
        if prompts:
            self._reserved[reservation] = len(prompts)
            self._reserved_by_rank[reservation.rank] += len(prompts)

    async def _take(self, rank: int, tenant: str) -> None:
        if self.in_flight < self.max_concurrent:
            self.in_flight += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues[rank].setdefault(tenant, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._forget(rank, tenant, waiter)
            else:
                self._pass_on()  # the slot was handed over at the moment of the cancellation
            raise

    def _pass_on(self) -> None:
        """Hand the slot to the next tenant of the highest class, which then waits for the others of its class."""
        for queue in self._queues:
            while queue:
                tenant, waiters = queue.popitem(last=False)
                waiter = waiters.popleft()
                if waiters:
                    queue[tenant] = waiters
                if not waiter.done():
                    waiter.set_result(None)
                    return
        self.in_flight -= 1

    def _forget(self, rank: int, tenant: str, waiter: "asyncio.Future[None]") -> None:
        waiters = self._queues[rank].get(tenant)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._queues[rank][tenant]


def _averaged(average: float | None, newest: float) -> float:
    return newest if average is None else (1 - AVERAGED) * average + AVERAGED * newest
