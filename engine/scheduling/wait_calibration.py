"""Calibrates predicted waits by the measured speed of the queue."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from engine.scheduling.cost import row_work
from engine.scheduling.wait import QueueSnapshot

MEMORY = 0.9
"""The weight of a window when the next one is added: about the last 10 windows count."""
WINDOWS_A_WAIT = 8
MAX_WINDOW_NS = 1_000_000_000
MIN_WINDOW_NS = 50_000_000
"""A queue does not move far enough in less time to measure its speed."""
PRIOR_WINDOWS = 2.0
"""Weight of the prior, in windows in which the queue moved as predicted."""
MIN_SPEED, MAX_SPEED = 0.25, 2.0
"""Bounds of the speed in one window, in predicted seconds per second. Beyond them the prediction itself has changed."""

Predict = Callable[[QueueSnapshot, int, int], int]
"""Nanoseconds until a request's first token, from the snapshot, the class's rank and the request's prompt tokens."""


@dataclass(slots=True)
class _Probe:
    """A waiting request whose remaining wait is measured. At `since_ns`, `remaining_ns` were predicted.

    `later`: the prompt tokens, by id, of the requests that queued behind it in its class. `later_tokens` and
    `later_pairs` are their sums.
    """

    request_id: str
    prompt_tokens: int
    since_ns: int
    remaining_ns: int
    later: dict[str, int] = field(default_factory=dict)
    later_tokens: int = 0
    later_pairs: int = 0
    windows: int = 0

    @property
    def window_ns(self) -> int:
        return min(max(self.remaining_ns // WINDOWS_A_WAIT, MIN_WINDOW_NS), MAX_WINDOW_NS)

    def add_later(self, request_id: str, prompt_tokens: int) -> None:
        """A request queued behind the probe."""
        self.later[request_id] = prompt_tokens
        self.later_tokens += prompt_tokens
        self.later_pairs += _pairs(prompt_tokens)

    def remove_later(self, request_id: str) -> None:
        """A request left the queue without being served; it may have been behind the probe."""
        if (prompt_tokens := self.later.pop(request_id, None)) is not None:
            self.later_tokens -= prompt_tokens
            self.later_pairs -= _pairs(prompt_tokens)

    def has_started(self, snapshot: QueueSnapshot, rank: int) -> bool:
        """Whether only requests behind the probe still wait."""
        return snapshot.classes[rank].waiting_requests <= len(self.later)

    def queue_ahead(self, snapshot: QueueSnapshot, rank: int) -> QueueSnapshot:
        """The snapshot without the probe and the requests behind it."""
        return snapshot.without_waiting(
            rank,
            requests=len(self.later) + 1,
            tokens=self.later_tokens + self.prompt_tokens,
            pairs=self.later_pairs + _pairs(self.prompt_tokens),
        )


class WaitCalibration:
    """Corrects the predicted waits of one class by the speed at which its queue has moved recently.

    A prediction multiplies a number of steps by their predicted time. It is wrong by a slowly changing factor where
    time is lost outside of steps, where answers become longer than recent ones, or where higher classes take more than
    their recent share. Completed waits arrive one full wait late and describe a stale queue, so one queued request is
    used as a probe instead. The predicted wait for the queue ahead of it should fall by one second per second. Being
    overtaken by another tenant does not change that. Requests that leave the queue because they are aborted or paused,
    and requests that return to it, do not count as movement.

    Predictions passed to it are uncalibrated, so it does not correct itself. Not thread-safe.
    """

    def __init__(self, rank: int, predict: Predict) -> None:
        self.factor = 1.0
        """Measured over predicted wait of the class."""
        self._rank = rank
        self._predict = predict
        self._windows = self._speeds = PRIOR_WINDOWS
        self._probe: _Probe | None = None

    @property
    def has_probe(self) -> bool:
        """Whether a queued request is used as a probe."""
        return self._probe is not None

    def on_submit(
        self, request_id: str, prompt_tokens: int, now_ns: int, queue_ahead: Callable[[], QueueSnapshot]
    ) -> None:
        """A request queues behind those of `queue_ahead`, which is called only where there is no probe yet."""
        if self._probe is not None:
            self._probe.add_later(request_id, prompt_tokens)
            return
        remaining_ns = self._predict(queue_ahead(), self._rank, prompt_tokens)
        if remaining_ns >= 2 * MIN_WINDOW_NS:
            self._probe = _Probe(request_id, prompt_tokens, now_ns, remaining_ns)

    def on_displaced(self, request_ids: Collection[str], before: QueueSnapshot, after: QueueSnapshot) -> None:
        """These requests left a queue without being served, or returned to it.

        The change of the predicted wait from `before` to `after` is excluded from the queue's speed. A probe that is
        one of these requests is dropped.
        """
        probe = self._probe
        if probe is None:
            return
        if probe.request_id in request_ids:
            self._probe = None
            return
        if probe.has_started(before, self._rank):  # `on_step` has not seen the step that started it yet
            for request_id in request_ids:
                probe.remove_later(request_id)
            return
        ahead_before = self._predict(probe.queue_ahead(before, self._rank), self._rank, probe.prompt_tokens)
        for request_id in request_ids:
            probe.remove_later(request_id)
        if probe.has_started(after, self._rank):  # later arrivals started first: the position is unknown
            self._probe = None
            return
        ahead_after = self._predict(probe.queue_ahead(after, self._rank), self._rank, probe.prompt_tokens)
        probe.remaining_ns = max(probe.remaining_ns + ahead_after - ahead_before, 0)

    def on_step(self, snapshot: QueueSnapshot, now_ns: int) -> None:
        """A step may have moved the queue. O(classes) once per window, otherwise O(1)."""
        probe = self._probe
        if probe is None:
            return
        elapsed_ns = now_ns - probe.since_ns
        if probe.has_started(snapshot, self._rank):
            self._probe = None
            if not probe.windows and elapsed_ns >= MIN_WINDOW_NS:
                self._observe(probe.remaining_ns / elapsed_ns)
        elif elapsed_ns >= probe.window_ns:
            remaining_ns = self._predict(probe.queue_ahead(snapshot, self._rank), self._rank, probe.prompt_tokens)
            self._observe((probe.remaining_ns - remaining_ns) / elapsed_ns)
            probe.since_ns, probe.remaining_ns = now_ns, remaining_ns
            probe.windows += 1

    def _observe(self, speed: float) -> None:
        self._windows = MEMORY * self._windows + 1.0
        self._speeds = MEMORY * self._speeds + min(max(speed, MIN_SPEED), MAX_SPEED)
        self.factor = self._windows / self._speeds


def _pairs(tokens: int) -> int:
    return row_work(0, tokens).prefill_pairs
