"""How fast steps follow one another, beside how long the cost model says that each takes."""

PACE_STEPS = 128
"""So many steps, the latest, make the mean."""
MIN_STRETCH, MAX_STRETCH = 0.5, 20.0


class Pace:
    """The time that steps take of the clock over their predicted time, of late.

    Over 1 where something comes between them that the cost model never sees: other models' steps, a busy event loop,
    other programs on the machine; or where many steps are slow beyond what the model takes for plausible. Waits are
    predicted from the cost model and stretched by this. Written by the thread that steps; `stretch` may be read by any.
    """

    def __init__(self) -> None:
        self.stretch = 1.0
        self._taken_ns = self._predicted_ns = 0.0
        self._last_end_ns: int | None = None

    def observe(self, predicted_ns: int, started_ns: int, ended_ns: int, *, more: bool) -> None:
        """A step was computed from `started_ns` to `ended_ns`. `more`: there is work left, so what passes until the
        next step's end is that step's; otherwise the time in between was idle."""
        begun_ns = started_ns if self._last_end_ns is None else self._last_end_ns
        self._last_end_ns = ended_ns if more else None
        keep = 1.0 - 1.0 / PACE_STEPS
        self._taken_ns = keep * self._taken_ns + (ended_ns - begun_ns)
        self._predicted_ns = keep * self._predicted_ns + predicted_ns
        if self._predicted_ns > 0.0:
            self.stretch = min(max(self._taken_ns / self._predicted_ns, MIN_STRETCH), MAX_STRETCH)
