"""The measured time between steps, relative to the step times that the cost model predicts."""

MEAN_STEPS = 128
"""Steps in the moving average."""
MIN_SLOWDOWN, MAX_SLOWDOWN = 0.5, 20.0


class StepSlowdown:
    """The ratio of the wall-clock time that recent steps took to their predicted time, as a moving average.

    It exceeds 1 where time passes between steps that the cost model never sees (other models' steps, a busy event
    loop, other programs on the machine), or where many steps are slower than the model accepts as plausible. Predicted
    waits are multiplied by `factor`. The engine thread writes it; any thread may read it.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._taken_ns = self._predicted_ns = 0.0
        self._last_end_ns: int | None = None

    @property
    def resting(self) -> bool:
        """Whether the time until the next step counts for nothing."""
        return self._last_end_ns is None

    def observe(self, predicted_ns: int, started_ns: int, ended_ns: int, *, more: bool) -> None:
        """Record a step that ran from `started_ns` to `ended_ns`.

        `more`: work is left, so the time up to the end of the next step counts for that step, unless `rest` is called
        before it. Otherwise the engine is idle until the next step starts.
        """
        begun_ns = started_ns if self._last_end_ns is None else self._last_end_ns
        self._last_end_ns = ended_ns if more else None
        keep = 1.0 - 1.0 / MEAN_STEPS
        # A longer one was interrupted, as by a suspended machine, and says nothing of the next ones.
        taken_ns = min(ended_ns - begun_ns, MAX_SLOWDOWN * predicted_ns)
        self._taken_ns = keep * self._taken_ns + taken_ns
        self._predicted_ns = keep * self._predicted_ns + predicted_ns
        if self._predicted_ns > 0.0:
            self.factor = min(max(self._taken_ns / self._predicted_ns, MIN_SLOWDOWN), MAX_SLOWDOWN)

    def rest(self) -> None:
        """No work is left: the engine is idle until the next step starts."""
        self._last_end_ns = None
