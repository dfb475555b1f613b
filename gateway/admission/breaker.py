"""A circuit breaker before a store that may be slow or gone. It goes by the store's silence, not by counting failures.

Closed, calls go through, `MAX_IN_FLIGHT` at a time, the tenants in turn. A call that fails, or has no answer by its
deadline (`AnswerDeadline`), is asked again over another connection: all calls can be repeated. Neither waiting for a
slot nor a stall of this process counts against the store (`wait_responsively`).

Open, when the store has answered no call for `SILENT_S`: calls fail at once. A probe looks whether the store answers
and takes writes, the first one soon, later ones each `PROBE_S`; one that succeeds closes the breaker. Where probes
succeed and calls do not, probes keep their distance, so that it does not flap.

Away, when it is open and the store has been unreachable for `AWAY_S`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.admission.deadlines import CEILING_S, RESOLUTION_S, AnswerDeadline, wait_responsively
from gateway.admission.fair_slots import FairSlots
from gateway.admission.store import StoreAway

SILENT_S = 0.5
AWAY_S = 3.0
PATIENCE_S = 1.0
"""How long a call is repeated that fails while others are answered."""
RETRY_S = 0.05
"""Between an error and the next try."""
FIRST_PROBE_S = 0.05
PROBE_S = 0.5
MAX_IN_FLIGHT = 8
"""Calls at a time. A thousand at once would wait for one another on this process' one thread."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class CircuitBreaker:
    """For one event loop, by its time. `probe` writes something to the store; `aclose` ends the probing."""

    def __init__(self, probe: Callable[[], Awaitable[None]]) -> None:
        self._probe = probe
        self._slots = FairSlots(MAX_IN_FLIGHT)
        self._deadline = AnswerDeadline()
        self._answers = 0
        self._unreachable_s = 0.0
        """For how long nothing has been answered, while it is open."""
        self._probe_every_s = FIRST_PROBE_S
        self._decided: asyncio.Future[None] | None = None
        """Done when it has closed, or the store is away. None while it is closed."""
        self._prober: asyncio.Task[None] | None = None
        self.opened_total = 0
        self.failures_total = 0

    @property
    def is_open(self) -> bool:
        return self._decided is not None

    @property
    def is_away(self) -> bool:
        """Open, and unreachable for `AWAY_S`."""
        return self.is_open and self._unreachable_s >= AWAY_S

    async def call(self, tenant_id: str, action: Callable[[], Awaitable[T]]) -> T:
        """Perform an action that may be repeated: it has taken place once, or more than once.

        Raises:
            StoreAway: the breaker is open, or opens now, or this action failed for `PATIENCE_S` while others were
                answered. It may have taken place if it has begun.
        """
        self._refuse_if_open()
        async with self._slots.slot(tenant_id):
            self._refuse_if_open()  # it may have opened while this call waited
            return await self._ask(action)

    async def wait_until_decided(self, at_most_s: float) -> float:
        """Wait until it has closed or the store is away. Returns how long that took."""
        return 0.0 if self._decided is None else await wait_responsively(self._decided, at_most_s)

    async def aclose(self) -> None:
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.wait([self._prober])

    async def _ask(self, action: Callable[[], Awaitable[T]]) -> T:
        """Repeat it until it is answered, or the store has been silent for too long, or others alone are answered."""
        heard, silent_s, asked_s = self._answers, 0.0, 0.0
        while True:
            attempt, took_s = asyncio.ensure_future(action()), 0.0
            try:
                took_s = await wait_responsively(attempt, min(self._deadline.seconds, SILENT_S - silent_s))
                if attempt.done():
                    answer = attempt.result()
                    self._record_answer(took_s)
                    return answer
                self._deadline.on_timeout()
                why = "no answer in time"
            except StoreAway as error:
                why = str(error)
                took_s += await _pause(RETRY_S)
            finally:
                await _abandon(attempt)
            self.failures_total += 1
            asked_s += took_s
            silent_s = silent_s + took_s if heard == self._answers else 0.0
            heard = self._answers
            if silent_s > SILENT_S - RESOLUTION_S:
                self._open(why)
            self._refuse_if_open()
            if asked_s >= PATIENCE_S:
                raise StoreAway(f"the store of limits answers other calls, and not this one: {why}")

    def _refuse_if_open(self) -> None:
        if self.is_open:
            raise _is_away()

    def _record_answer(self, took_s: float) -> None:
        self._answers += 1
        self._deadline.on_answer(took_s)
        self._probe_every_s = FIRST_PROBE_S

    def _open(self, why: str) -> None:
        if self.is_open:
            return
        _log.warning("store of limits does not answer: %s", why)
        self.opened_total += 1
        self._unreachable_s = SILENT_S
        self._decided = asyncio.get_running_loop().create_future()
        self._slots.turn_away(_is_away)
        self._prober = asyncio.create_task(self._probe_until_back())

    async def _probe_until_back(self) -> None:
        while True:
            silent_s = await _pause(self._probe_every_s)
            self._probe_every_s = min(PROBE_S, 2 * self._probe_every_s)
            attempt = asyncio.ensure_future(self._probe())
            try:
                took_s = await wait_responsively(attempt, CEILING_S)
                silent_s += took_s
                if attempt.done():
                    attempt.result()
                    self._close(took_s)
                    return
            except StoreAway:
                pass
            finally:
                await _abandon(attempt)
            self._unreachable_s += silent_s
            self._decide_if_away()

    def _decide_if_away(self) -> None:
        if self.is_away and self._decided is not None and not self._decided.done():
            _log.warning("store of limits away for %.1f s: limits go by the local share", self._unreachable_s)
            self._decided.set_result(None)

    def _close(self, took_s: float) -> None:
        _log.warning("store of limits back")
        self._deadline.on_answer(took_s)
        if self._decided is not None and not self._decided.done():
            self._decided.set_result(None)
        self._decided = None


def _is_away() -> StoreAway:
    return StoreAway("the store of limits is away")


async def _pause(seconds: float) -> float:
    return await wait_responsively(asyncio.get_running_loop().create_future(), seconds)


async def _abandon(attempt: "asyncio.Future[T]") -> None:
    """End an attempt that is late. The client closes its connection, so its answer is never read as another's."""
    if not attempt.done():
        attempt.cancel()
        await asyncio.wait((attempt,))
        if not attempt.cancelled():
            attempt.exception()  # nobody asks for it
