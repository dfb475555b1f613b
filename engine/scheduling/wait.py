"""How long a new request would wait for its first token, from running sums: O(classes), whatever is queued.

Asked at each admission, on the event loop. The scheduler keeps a `LoadSums` for each class up to date and takes a
`QueueSnapshot` of them after each change; `with_arrivals` adds what was let in and is not in the scheduler yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Self

from engine.config import BLOCK_TOKENS
from engine.scheduling.cost import NO_WORK, StepCostModel, StepWork, row_work

ANSWER_MEMORY = 128
"""So many answers, the latest, make a class's mean length."""
MIN_SHARE = 0.1
"""What a class is taken to be left with, at least, by the higher ones."""
MIN_RETRY_MS = 100
MAX_RETRY_MS = 600_000
RETRY_SPREAD = 0.1
"""Clients that were turned away together are told to come back over this much more of the wait."""


@dataclass(frozen=True, slots=True)
class ClassLoad:
    """What one class of service has in the scheduler.

    `prefill_tokens` are those that its running requests have left to compute beyond one each. `context_tokens` are
    those whose KV its running requests read each step. `answer_tokens` is how long one of its answers becomes: the mean
    of those that have ended or, before there is one, an estimate from the sum of the bounds of those that are here,
    `bound_tokens` (None: it is a mean).
    """

    waiting_requests: int = 0
    waiting_tokens: int = 0
    waiting_pairs: int = 0
    running_requests: int = 0
    prefill_tokens: int = 0
    context_tokens: int = 0
    answer_tokens: float = 1.0
    bound_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Sums over requests of one class that were let in and are not in the scheduler yet: prompt tokens, pairs of
    attention, and the most tokens that their answers may have."""

    requests: int = 0
    tokens: int = 0
    pairs: int = 0
    max_tokens: int = 0

    def plus(self, other: "Arrivals") -> "Arrivals":
        return Arrivals(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.pairs + other.pairs,
            self.max_tokens + other.max_tokens,
        )

    def minus(self, other: "Arrivals") -> "Arrivals":
        return Arrivals(
            self.requests - other.requests,
            self.tokens - other.tokens,
            self.pairs - other.pairs,
            self.max_tokens - other.max_tokens,
        )


@dataclass(frozen=True, slots=True)
class ClassRoom:
    """What is within a class's reach: slots and blocks that are free and not reserved above it, the tokens of prefill
    that a step has for it beside one token for each running request. `higher_running` is how many requests of higher
    classes run, as the mean of late."""

    free_slots: int
    free_blocks: int
    prefill_step_tokens: float
    higher_running: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The load of each class and the room that there is for it, the one that is served first first.

    `held_blocks` are all that running requests have.
    """

    classes: tuple[ClassLoad, ...]
    rooms: tuple[ClassRoom, ...]
    held_blocks: int

    def with_arrivals(self, arrivals: Sequence[Arrivals]) -> Self:
        """With those that were let in since, by class: they are ahead of the next."""
        classes = tuple(map(_with_arrivals, self.classes, arrivals))
        return replace(self, classes=classes)

    def without_waiting(self, service_class: int, *, requests: int, tokens: int, pairs: int) -> Self:
        """Without so many of those that wait in a class."""
        load = self.classes[service_class]
        shorter = replace(
            load,
            waiting_requests=load.waiting_requests - requests,
            waiting_tokens=max(load.waiting_tokens - tokens, 0),
            waiting_pairs=max(load.waiting_pairs - pairs, 0),
        )
        return replace(self, classes=(*self.classes[:service_class], shorter, *self.classes[service_class + 1 :]))

    def queue_depth(self, arrivals: Sequence[Arrivals]) -> int:
        """Requests that wait, with those that were let in since and will find no slot and blocks free.

        Where nobody waits before them in their class or above, arrivals take what is free, the highest class first.
        """
        depth = slots = blocks = waiting = 0
        for load, room, arrived in zip(self.classes, self.rooms, arrivals, strict=True):
            waiting += load.waiting_requests
            placed = 0
            if arrived.requests and not waiting:
                each_blocks = ceil(arrived.tokens / BLOCK_TOKENS / arrived.requests) + 1
                placed = min(arrived.requests, room.free_slots - slots, (room.free_blocks - blocks) // each_blocks)
                placed = max(placed, 0)
                slots, blocks = slots + placed, blocks + placed * each_blocks
            depth += load.waiting_requests + arrived.requests - placed
        return depth


def _with_arrivals(load: ClassLoad, arrived: Arrivals) -> ClassLoad:
    if not arrived.requests:
        return load
    waiting_requests, bound_tokens, answer_tokens = load.waiting_requests + arrived.requests, None, load.answer_tokens
    if load.bound_tokens is not None:
        bound_tokens = load.bound_tokens + arrived.max_tokens
        answer_tokens = _estimated_answer(bound_tokens, waiting_requests + load.running_requests)
    return replace(
        load,
        waiting_requests=waiting_requests,
        waiting_tokens=load.waiting_tokens + arrived.tokens,
        waiting_pairs=load.waiting_pairs + arrived.pairs,
        answer_tokens=answer_tokens,
        bound_tokens=bound_tokens,
    )


def _estimated_answer(bound_tokens: int, requests: int) -> float:
    """How long an answer becomes, before one has ended: half of what the bounds allow."""
    return max(bound_tokens / 2 / max(requests, 1), 1.0)


class LoadSums:
    """The sums of one class that `ClassLoad` is taken of. The scheduler calls for each change of a request's place.

    `tokens` are a request's own, prompt and answer so far; `max_tokens` bounds its answer. A waiting request's are
    all to be computed: what of them is cached shows only when it starts. A request is removed with the values that
    it was added with, plus what `advance` was told of it; then all sums of an empty scheduler are zero.
    """

    def __init__(self) -> None:
        self._waiting_requests = 0
        self._waiting_tokens = 0
        self._waiting_pairs = 0
        self._running_requests = 0
        self._running_tokens = 0
        self._computed_tokens = 0
        self._bound_tokens = 0
        self._answers = 0
        self._answer_tokens = 0.0

    def add_waiting(self, tokens: int, max_tokens: int) -> None:
        self._change_waiting(1, tokens, max_tokens)

    def remove_waiting(self, tokens: int, max_tokens: int) -> None:
        self._change_waiting(-1, tokens, max_tokens)

    def add_running(self, tokens: int, computed: int, max_tokens: int) -> None:
        self._change_running(1, tokens, computed, max_tokens)

    def remove_running(self, tokens: int, computed: int, max_tokens: int) -> None:
        self._change_running(-1, tokens, computed, max_tokens)

    def advance(self, computed: int, sampled: int) -> None:
        """Running requests of the class have `computed` more tokens computed and `sampled` more of them."""
        self._computed_tokens += computed
        self._running_tokens += sampled

    def observe_answer(self, output_tokens: int) -> None:
        """A request has left, however it ended, with an answer of this length. The latest count most."""
        self._answers = min(self._answers + 1, ANSWER_MEMORY)
        self._answer_tokens += (output_tokens - self._answer_tokens) / self._answers

    @property
    def waiting_requests(self) -> int:
        return self._waiting_requests

    @property
    def answer_tokens(self) -> float:
        """How long an answer becomes: as the latest did; before there is one, half of what the bounds allow."""
        if self._answers:
            return max(self._answer_tokens, 1.0)
        return _estimated_answer(self._bound_tokens, self._waiting_requests + self._running_requests)

    @property
    def context_tokens(self) -> int:
        """Those whose KV the running requests read in a step."""
        return self._computed_tokens + self._running_requests

    def load(self) -> ClassLoad:
        return ClassLoad(
            waiting_requests=self._waiting_requests,
            waiting_tokens=self._waiting_tokens,
            waiting_pairs=self._waiting_pairs,
            running_requests=self._running_requests,
            prefill_tokens=max(self._running_tokens - self._computed_tokens - self._running_requests, 0),
            context_tokens=self.context_tokens,
            answer_tokens=self.answer_tokens,
            bound_tokens=None if self._answers else self._bound_tokens,
        )

    def check(self) -> None:
        """State what holds between any two calls."""
        assert min(self._waiting_requests, self._waiting_tokens, self._waiting_pairs, self._bound_tokens) >= 0
        assert self._running_requests >= 0
        assert 0 <= self._computed_tokens <= self._running_tokens
        assert self._waiting_requests or not self._waiting_tokens, "nobody waits, with tokens"
        assert self._running_requests or not self._running_tokens, "nobody runs, with tokens"

    def _change_waiting(self, sign: int, tokens: int, max_tokens: int) -> None:
        self._waiting_requests += sign
        self._waiting_tokens += sign * tokens
        self._waiting_pairs += sign * row_work(0, tokens).prefill_pairs
        self._bound_tokens += sign * max_tokens

    def _change_running(self, sign: int, tokens: int, computed: int, max_tokens: int) -> None:
        self._running_requests += sign
        self._running_tokens += sign * tokens
        self._computed_tokens += sign * computed
        self._bound_tokens += sign * max_tokens


def predict_first_token_ns(snapshot: QueueSnapshot, service_class: int, prompt_tokens: int, cost: StepCostModel) -> int:
    """How long until a request that comes now has its first token. `service_class` indexes the snapshot's classes.

    Ahead of it are those of its class and of higher ones that wait, and the prefill of all that run. It starts when
    their prefill is done and there is a slot, and there are blocks, for them and for it. Steps for the former: their
    tokens over those that a step has. For the latter: with R running and answers of L tokens, R / L requests leave
    a step, be the lengths what they may, as long as slots are refilled; and what lower classes hold is taken from
    them. Slots that are free are filled first by those ahead: R is with them. A step takes as long as its decode work,
    plus the marginal cost of the prefill.

    Higher classes that arrive later go first too. They are expected to go on taking the share of the engine that they
    had of late. Not foreseen: cache hits, and more than one token a step by speculation; either makes it shorter.
    """
    ahead = snapshot.classes[: service_class + 1]
    waiting_tokens = sum(load.waiting_tokens for load in ahead)
    prefill_tokens = waiting_tokens + sum(load.prefill_tokens for load in snapshot.classes)
    step_tokens = max(snapshot.rooms[service_class].prefill_step_tokens, 1)
    running = sum(load.running_requests for load in snapshot.classes)
    decode_ns = cost.predict_ns(_decode_work(snapshot.classes))
    queue_ns = max(
        prefill_tokens / step_tokens * decode_ns,
        _steps_to_a_slot(snapshot, service_class) * cost.predict_ns(_decode_work_when_full(snapshot, service_class)),
        _steps_to_blocks(snapshot, service_class, prompt_tokens) * decode_ns,
    )
    queue_ns /= _share_left(snapshot, service_class)
    own_steps = max(ceil(prompt_tokens / step_tokens), 1) + (0.5 if running else 0.0)
    own = row_work(0, prompt_tokens) if prompt_tokens else NO_WORK
    prefill = StepWork(
        tokens=prefill_tokens + prompt_tokens,
        context_tokens=0,
        prefill_pairs=sum(load.waiting_pairs for load in ahead) + own.prefill_pairs,
        rows=0,
    )
    prefill_ns = cost.predict_ns(prefill) - cost.predict_ns(NO_WORK)
    return int(queue_ns + own_steps * decode_ns) + prefill_ns


def predict_drain_ns(snapshot: QueueSnapshot, service_class: int, cost: StepCostModel) -> int:
    """How long until all that wait now in this class and in higher ones have their first token.

    Zero where nobody waits: a class's own running requests are no queue.
    """
    if not any(load.waiting_requests for load in snapshot.classes[: service_class + 1]):
        return 0
    return predict_first_token_ns(snapshot, service_class, 0, cost)


def retry_after_ms(drain_ns: int, spread: float) -> int:
    """What to tell a client that was turned away: when the queue will have drained, and a little later.

    `spread` in [0, 1) differs from client to client, so that they do not come back all at once.
    """
    wait_ms = ceil(drain_ns * (1.0 + RETRY_SPREAD * spread) / 1e6)
    return min(max(wait_ms, MIN_RETRY_MS), MAX_RETRY_MS)


def _decode_work(classes: Sequence[ClassLoad]) -> StepWork:
    running = sum(load.running_requests for load in classes)
    return StepWork(running, sum(load.context_tokens for load in classes), 0, running)


def _decode_work_when_full(snapshot: QueueSnapshot, service_class: int) -> StepWork:
    """That of a step in which those ahead have taken the slots that are free."""
    ahead = snapshot.classes[: service_class + 1]
    now, started = _decode_work(snapshot.classes), max(snapshot.rooms[service_class].free_slots, 0)
    waiting = max(sum(load.waiting_requests for load in ahead), 1)
    context_tokens = started * sum(load.waiting_tokens for load in ahead) // waiting
    return StepWork(now.tokens + started, now.context_tokens + context_tokens, 0, now.rows + started)


def _share_left(snapshot: QueueSnapshot, service_class: int) -> float:
    """The part of the slots in use, once all within reach are, that is not of a higher class: by Little's law, its
    part of the service."""
    room = snapshot.rooms[service_class]
    own = room.free_slots + sum(load.running_requests for load in snapshot.classes[service_class:])
    return max(own / (own + room.higher_running), MIN_SHARE) if own else MIN_SHARE


def _steps_to_a_slot(snapshot: QueueSnapshot, service_class: int) -> float:
    """Steps until so many have left that those ahead, and one more, have their slots."""
    running = sum(load.running_requests for load in snapshot.classes)
    free_slots = snapshot.rooms[service_class].free_slots
    waiting = sum(load.waiting_requests for load in snapshot.classes[: service_class + 1]) + 1
    missing_slots = waiting - free_slots - _yielding(snapshot, service_class)
    if missing_slots <= 0:
        return 0.0
    return missing_slots * _answer_tokens(snapshot, service_class) / max(running + free_slots, 1)


def _steps_to_blocks(snapshot: QueueSnapshot, service_class: int, prompt_tokens: int) -> float:
    """Steps until so many have left that those ahead, and one with this prompt, have their blocks."""
    ahead = snapshot.classes[: service_class + 1]
    running: float = sum(load.running_requests for load in snapshot.classes)
    free_blocks = snapshot.rooms[service_class].free_blocks
    waiting = sum(load.waiting_requests for load in ahead) + 1
    wanted_tokens = sum(load.waiting_tokens for load in ahead) + prompt_tokens
    wanted_blocks = wanted_tokens / BLOCK_TOKENS + waiting
    if running:
        held_blocks = max(snapshot.held_blocks / running, 1.0)
    else:  # the first of those ahead will be what runs
        held_blocks = wanted_blocks / waiting
        running = max(free_blocks / held_blocks, 1.0)
    missing_blocks = wanted_blocks - free_blocks - _yielding(snapshot, service_class) * held_blocks
    return max(missing_blocks, 0.0) / held_blocks * _answer_tokens(snapshot, service_class) / running


def _yielding(snapshot: QueueSnapshot, service_class: int) -> int:
    """Running requests of lower classes: what they hold is taken from them."""
    return sum(load.running_requests for load in snapshot.classes[service_class + 1 :])


def _answer_tokens(snapshot: QueueSnapshot, service_class: int) -> float:
    """How long the answers become that are waited for: of those that run or, where none does, of the longest class
    among those ahead."""
    running = sum(load.running_requests for load in snapshot.classes)
    if running:
        return sum(load.running_requests * load.answer_tokens for load in snapshot.classes) / running
    ahead = snapshot.classes[: service_class + 1]
    return max((load.answer_tokens for load in ahead if load.waiting_requests), default=1.0)
