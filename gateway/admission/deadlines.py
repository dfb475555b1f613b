"""How long an answer of the store may take, and time in which this process could have read one.

A deadline follows the measured latency as the retransmission timer of TCP does (RFC 6298): the smoothed round trip plus
four times its variation or, as in Linux, plus a floor where that is more. Time counts in ticks of the event loop: of a
tick that took longer, because this process stood still, only the tick itself counts. So a process that stalls finds no
call late: before its deadline is over, the loop has read its sockets many times.
"""

import asyncio
from typing import Any

FLOOR_S = 0.05
CEILING_S = 0.25
"""A store whose answers take longer than this is no help: it counts as silent."""
TICK_S = 0.002
RESOLUTION_S = 0.001
"""Of a loop's time: uvloop's has whole milliseconds."""

_SRTT_GAIN = 1 / 8
_RTTVAR_GAIN = 1 / 4
_RTTVAR_FACTOR = 4


class AnswerDeadline:
    """RFC 6298, sections 2 and 5.5: from `FLOOR_S` above the smoothed round trip to `CEILING_S`."""

    def __init__(self) -> None:
        self.seconds = CEILING_S
        self._srtt_s: float | None = None
        self._rttvar_s = 0.0

    def on_answer(self, rtt_s: float) -> None:
        """An answer took this long. Each attempt has its own connection, so a late one's answer is not mistaken for
        that of the next (Karn's problem), and every answer may be measured."""
        if self._srtt_s is None:
            self._srtt_s, self._rttvar_s = rtt_s, rtt_s / 2
        else:
            self._rttvar_s += _RTTVAR_GAIN * (abs(self._srtt_s - rtt_s) - self._rttvar_s)
            self._srtt_s += _SRTT_GAIN * (rtt_s - self._srtt_s)
        self.seconds = min(CEILING_S, self._srtt_s + max(FLOOR_S, _RTTVAR_FACTOR * self._rttvar_s))

    def on_timeout(self) -> None:
        """No answer within the deadline: back off until the next measurement."""
        self.seconds = min(CEILING_S, 2 * self.seconds)


async def wait_responsively(future: "asyncio.Future[Any]", at_most_s: float) -> float:
    """Wait until a future is done, or until the loop has run for `at_most_s` in ticks. The future is not cancelled.
    Returns the time that counted."""
    loop = asyncio.get_running_loop()
    passed_s = 0.0
    while not future.done() and at_most_s - passed_s > RESOLUTION_S:
        tick_s = min(TICK_S, at_most_s - passed_s)
        started = loop.time()
        await asyncio.wait((future,), timeout=tick_s)
        passed_s += min(tick_s, loop.time() - started)
    return passed_s if future.done() else at_most_s
