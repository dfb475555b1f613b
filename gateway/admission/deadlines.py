"""Deadlines of the store's answers.

A deadline follows the measured latency as TCP's retransmission timer does (RFC 6298): the smoothed round trip plus four
times its variation or, as in Linux, plus a floor if that is more.
"""

FLOOR_S = 0.05
"""Least margin of a deadline above the smoothed round trip, in seconds."""
CEILING_S = 0.25
"""Upper bound of a deadline in seconds. A store that is slower counts as silent."""

_SRTT_GAIN = 1 / 8
_RTTVAR_GAIN = 1 / 4
_RTTVAR_FACTOR = 4


class AnswerDeadline:
    """RFC 6298, sections 2 and 5.5. `seconds`: the deadline, from `FLOOR_S` above the smoothed round trip to
    `CEILING_S`."""

    def __init__(self) -> None:
        self.seconds = CEILING_S
        self._srtt_s: float | None = None
        self._rttvar_s = 0.0

    def on_answer(self, rtt_s: float) -> None:
        """Record a round trip of `rtt_s` seconds. Each attempt has a connection of its own, so a late answer is not
        mistaken for the next attempt's (Karn's algorithm), and every answer counts."""
        if self._srtt_s is None:
            self._srtt_s, self._rttvar_s = rtt_s, rtt_s / 2
        else:
            self._rttvar_s += _RTTVAR_GAIN * (abs(self._srtt_s - rtt_s) - self._rttvar_s)
            self._srtt_s += _SRTT_GAIN * (rtt_s - self._srtt_s)
        self.seconds = min(CEILING_S, self._srtt_s + max(FLOOR_S, _RTTVAR_FACTOR * self._rttvar_s))

    def on_timeout(self) -> None:
        """Record a missed deadline: back off until the next answer."""
        self.seconds = min(CEILING_S, 2 * self.seconds)
