"""A circuit breaker before a store that may be slow or gone.

Closed, calls go through, each with a deadline. At `TRIPS_AT` more failures (late answers included) than successes
lately it opens, and calls fail at once; meanwhile a probe each `PROBE_S` looks whether the store answers in time
again, and closes it. So a store that is gone costs the calls that are in flight their deadline, and none after them:
no request ever serves as the probe.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.admission.store import StoreAway

DEADLINE_S = 0.05
TRIPS_AT = 5
PROBE_S = 1.0
STALL_S = 0.02
"""A deadline noticed this late says that this process stood still, and nothing about the store."""
MAX_IN_FLIGHT = 8
"""Calls at a time. A thousand at once would wait for one another on this process' one thread, miss their deadlines,
and be taken for a slow store; those over the limit wait before their deadline starts."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class CircuitBreaker:
    """For one event loop. `ping` is the probe; `aclose` ends the probing."""

    def __init__(self, ping: Callable[[], Awaitable[None]]) -> None:
        self._ping = ping
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._excess = 0
        self._prober: asyncio.Task[None] | None = None
        self.is_open = False
        self.opened_total = 0
        self.failures_total = 0

    async def call(self, action: Callable[[], Awaitable[T]]) -> T:
        """
        Raises:
            StoreAway: the breaker is open, or the store failed, or did not answer in time. In the last two cases the
                action may have taken place.
        """
        self._refuse_if_open()
        async with self._slots:
            self._refuse_if_open()  # it may have opened while this call waited
            started = asyncio.get_running_loop().time()
            try:
                answer = await _in_time(action)
            except TimeoutError:
                late_s = asyncio.get_running_loop().time() - started - DEADLINE_S
                if late_s < STALL_S:
                    self._failed("no answer in time")
                raise StoreAway("the store of limits did not answer in time") from None
            except StoreAway as error:
                self._failed(str(error))
                raise
            self._excess = max(0, self._excess - 1)
            return answer

    async def aclose(self) -> None:
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.wait([self._prober])

    def _refuse_if_open(self) -> None:
        if self.is_open:
            raise StoreAway("the store of limits is away")

    def _failed(self, why: str) -> None:
        self.failures_total += 1
        self._excess += 1
        if self._excess >= TRIPS_AT and not self.is_open:
            _log.warning("store of limits away, going on with the local share: %s", why)
            self.is_open = True
            self.opened_total += 1
            self._prober = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        while self.is_open:
            await asyncio.sleep(PROBE_S)
            try:
                await _in_time(self._ping)
            except (StoreAway, TimeoutError):
                continue
            _log.warning("store of limits back")
            self.is_open = False
            self._excess = 0


async def _in_time(action: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(DEADLINE_S):
        return await action()
