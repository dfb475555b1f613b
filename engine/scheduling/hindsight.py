"""How fast a queue moves, beside how fast it was predicted to."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from engine.scheduling.cost import row_work
from engine.scheduling.wait import QueueSnapshot

MEMORY = 0.9
"""What a window still weighs when the next one of its class comes: the last 10 or so count."""
WINDOWS_A_WAIT = 8
MAX_WINDOW_NS = 1_000_000_000
MIN_WINDOW_NS = 50_000_000
"""In less time no queue moves so far that its speed could be told."""
PRIOR_WINDOWS = 2.0
"""So many windows in which all went as predicted stand before the first."""
MIN_SPEED, MAX_SPEED = 0.25, 2.0
"""Of a queue, in predicted seconds a second, in one window: more or less is a change of mind of the prediction."""

Predict = Callable[[QueueSnapshot, int, int], int]
"""Nanoseconds until a request's first token: of the snapshot, the class's rank and the request's prompt tokens."""


@dataclass(slots=True)
class _Probe:
    """A request that waits, as of `since_ns`, when `remaining_ns` were predicted. `later` came behind it in its class,
    with the tokens of each by its id, so many tokens and pairs together."""

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

    def follow(self, request_id: str, prompt_tokens: int) -> None:
        """Another comes behind it."""
        self.later[request_id] = prompt_tokens
        self.later_tokens += prompt_tokens
        self.later_pairs += _pairs(prompt_tokens)

    def forget(self, request_id: str) -> None:
        """One that may have come behind it waits no more, and was not served."""
        if (prompt_tokens := self.later.pop(request_id, None)) is not None:
            self.later_tokens -= prompt_tokens
            self.later_pairs -= _pairs(prompt_tokens)

    def has_started(self, snapshot: QueueSnapshot, rank: int) -> bool:
        """Only those behind it wait."""
        return snapshot.classes[rank].waiting_requests <= len(self.later)

    def queue_ahead(self, snapshot: QueueSnapshot, rank: int) -> QueueSnapshot:
        """Without itself and those behind it."""
        return snapshot.without_waiting(
            rank,
            requests=len(self.later) + 1,
            tokens=self.later_tokens + self.prompt_tokens,
            pairs=self.later_pairs + _pairs(self.prompt_tokens),
        )


class Hindsight:
    """Corrects the predicted waits of one class by how fast its queue has moved of late.

    A prediction counts steps and multiplies with what they take. It is wrong by a factor that stays for a while where
    time is lost that no step shows, where answers become longer than the latest were, or where higher classes take more
    than their share of late. To learn the factor from the waits that come out would take as long as a wait, and tell of
    a state that is gone by then. So one that waits is watched: what is predicted to be left of its wait, in the queue
    ahead of it, should fall by a second a second. Whether it is overtaken by another tenant does not matter to that.
    Requests that leave the queue as they are aborted or paused, and those that come back, say nothing of its speed.

    Predictions given to it are without its correction, so that it does not correct itself. Callers take turns.
    """

    def __init__(self, rank: int, predict: Predict) -> None:
        self.factor = 1.0
        """How much longer waits of the class become than predicted."""
        self._rank = rank
        self._predict = predict
        self._windows = self._speeds = PRIOR_WINDOWS
        self._probe: _Probe | None = None

    @property
    def watches(self) -> bool:
        """A request is watched."""
        return self._probe is not None

    def submitted(
        self, request_id: str, prompt_tokens: int, now_ns: int, queue_ahead: Callable[[], QueueSnapshot]
    ) -> None:
        """A request comes to wait behind those of `queue_ahead`, which is asked for only where none is watched."""
        if self._probe is not None:
            self._probe.follow(request_id, prompt_tokens)
            return
        remaining_ns = self._predict(queue_ahead(), self._rank, prompt_tokens)
        if remaining_ns >= 2 * MIN_WINDOW_NS:
            self._probe = _Probe(request_id, prompt_tokens, now_ns, remaining_ns)

    def displaced(self, request_ids: Collection[str], before: QueueSnapshot, after: QueueSnapshot) -> None:
        """These requests left a queue without being served, or came back to it: what that changes of the wait that is
        left is no part of the queue's speed. Where the one that is watched is among them, it is dropped."""
        probe = self._probe
        if probe is None:
            return
        if probe.request_id in request_ids:
            self._probe = None
            return
        if probe.has_started(before, self._rank):  # `moved` has not been told of the step yet
            for request_id in request_ids:
                probe.forget(request_id)
            return
        ahead_before = self._predict(probe.queue_ahead(before, self._rank), self._rank, probe.prompt_tokens)
        for request_id in request_ids:
            probe.forget(request_id)
        if probe.has_started(after, self._rank):  # later arrivals started first: the position is unknown
            self._probe = None
            return
        ahead_after = self._predict(probe.queue_ahead(after, self._rank), self._rank, probe.prompt_tokens)
        probe.remaining_ns = max(probe.remaining_ns + ahead_after - ahead_before, 0)

    def moved(self, snapshot: QueueSnapshot, now_ns: int) -> None:
        """The queue may have moved. O(classes) once in a window, and next to nothing in between."""
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
