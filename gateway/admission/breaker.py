"""Circuit breaker for a store that may be slow or away (M. Nygard, Release It!). It opens on silence, not on a count of
failures.

Closed: calls pass, `MAX_IN_FLIGHT` at a time, the tenants in turn. A call that fails or misses its deadline
(`AnswerDeadline`) is repeated over another connection, as all calls are idempotent. Neither queueing for a slot nor a
stall of this process counts against the store (`wait_responsively`).

Open: the store has answered no call for `SILENT_S`, and calls fail at once. A probe checks that the store answers and
accepts writes, first after `FIRST_PROBE_S`, later every `PROBE_S`; one success closes the breaker. If probes succeed
but calls fail, the probe interval stays long, so the breaker does not flap.

Away: open, and the store has been unreachable for `AWAY_S`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.runtime.responsive_wait import RESOLUTION_S, wait_responsively
from gateway.admission.deadlines import CEILING_S, AnswerDeadline
from gateway.admission.fair_slots import FairSlots
from gateway.admission.store import StoreAway

SILENT_S = 0.5
"""Seconds without an answer after which the breaker opens."""
AWAY_S = 3.0
"""Seconds without an answer after which the store counts as away."""
PATIENCE_S = 1.0
"""Seconds for which a failing call is repeated while others are answered."""
RETRY_S = 0.05
"""Seconds between an error and the next attempt."""
FIRST_PROBE_S = 0.05
PROBE_S = 0.5
MAX_IN_FLIGHT = 8
"""Limit of concurrent calls. More would queue on this process' one thread."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class CircuitBreaker:
    """For one event loop, by its clock. `probe`: writes to the store. `aclose` stops the probing."""

    def __init__(self, probe: Callable[[], Awaitable[None]]) -> None:
        self._probe = probe
        self._slots = FairSlots(MAX_IN_FLIGHT)
        self._deadline = AnswerDeadline()
        self._answers = 0
        self._unreachable_s = 0.0
        """Seconds without an answer while the breaker is open."""
        self._probe_every_s = FIRST_PROBE_S
        self._decided: asyncio.Future[None] | None = None
        """Completes when the breaker closes or the store is away. None while the breaker is closed."""
        self._prober: asyncio.Task[None] | None = None
        self.opened_total = 0
        self.failures_total = 0

    @property
    def is_open(self) -> bool:
        """Whether calls fail at once."""
        return self._decided is not None

    @property
    def is_away(self) -> bool:
        """Open, and unreachable for `AWAY_S`."""
        return self.is_open and self._unreachable_s >= AWAY_S

    async def call(self, tenant_id: str, action: Callable[[], Awaitable[T]]) -> T:
        """Run an idempotent action. It takes place at least once.

        Raises:
            StoreAway: the breaker is open or opens now, or this action failed for `PATIENCE_S` while others were
                answered. An action that has started may have taken place.
        """
        self._refuse_if_open()
        async with self._slots.slot(tenant_id):
            self._refuse_if_open()  # the breaker may have opened while this call was queued
            return await self._ask(action)

    async def wait_until_decided(self, at_most_s: float) -> float:
        """Wait until the breaker has closed or the store is away, at most `at_most_s`. Returns the seconds waited."""
        return 0.0 if self._decided is None else await wait_responsively(self._decided, at_most_s)

    async def aclose(self) -> None:
        """Stop the probing."""
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.wait([self._prober])

    async def _ask(self, action: Callable[[], Awaitable[T]]) -> T:
        """Repeat the action until it is answered, the store has been silent for `SILENT_S`, or only other calls are
        answered for `PATIENCE_S`."""
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
    """Cancel a late attempt. The client closes its connection, so a late answer is never read as another call's."""
    if not attempt.done():
        attempt.cancel()
        await asyncio.wait((attempt,))
        if not attempt.cancelled():
            attempt.exception()  # marks the exception as retrieved
