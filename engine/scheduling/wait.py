"""How long a new request would wait for its first token, from running sums: O(classes), whatever is queued.

Asked at each admission, on the event loop. The scheduler keeps a `LoadSums` for each class up to date and takes a
`QueueSnapshot` of them after each step; `with_waiting` adds what the event loop has let in since.
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
    those whose KV its running requests read each step. `answer_tokens` is how long one of its answers becomes.
    """

    waiting_requests: int = 0
    waiting_tokens: int = 0
    waiting_pairs: int = 0
    running_requests: int = 0
    prefill_tokens: int = 0
    context_tokens: int = 0
    answer_tokens: float = 1.0


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

    def with_waiting(self, service_class: int, tokens: int) -> Self:
        """With one more request that waits: what was let in since the snapshot was taken is ahead of the next."""
        load = self.classes[service_class]
        longer = replace(
            load,
            waiting_requests=load.waiting_requests + 1,
            waiting_tokens=load.waiting_tokens + tokens,
            waiting_pairs=load.waiting_pairs + row_work(0, tokens).prefill_pairs,
        )
        classes = (*self.classes[:service_class], longer, *self.classes[service_class + 1 :])
        return replace(self, classes=classes)


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
    def answer_tokens(self) -> float:
        """How long an answer becomes: as the latest did; before there is one, half of what the bounds allow."""
        if self._answers:
            return max(self._answer_tokens, 1.0)
        return max(self._bound_tokens / 2 / max(self._waiting_requests + self._running_requests, 1), 1.0)

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
    them. A step takes as long as its decode work, plus the marginal cost of the prefill.

    Higher classes that arrive later go first too. They are expected to go on taking the share of the engine that they
    had of late. Not foreseen: cache hits, and more than one token a step by speculation; either makes it shorter.
    """
    ahead = snapshot.classes[: service_class + 1]
    waiting_tokens = sum(load.waiting_tokens for load in ahead)
    prefill_tokens = waiting_tokens + sum(load.prefill_tokens for load in snapshot.classes)
    step_tokens = max(snapshot.rooms[service_class].prefill_step_tokens, 1)
    steps = max(prefill_tokens / step_tokens, _steps_to_a_place(snapshot, service_class, prompt_tokens))
    steps /= _share_left(snapshot, service_class)
    steps += max(ceil(prompt_tokens / step_tokens), 1) + _half_a_step(snapshot)
    own = row_work(0, prompt_tokens) if prompt_tokens else NO_WORK
    prefill = StepWork(
        tokens=prefill_tokens + prompt_tokens,
        context_tokens=0,
        prefill_pairs=sum(load.waiting_pairs for load in ahead) + own.prefill_pairs,
        rows=0,
    )
    prefill_ns = cost.predict_ns(prefill) - cost.predict_ns(NO_WORK)
    return int(steps * cost.predict_ns(_decode_work(snapshot.classes))) + prefill_ns


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


def _share_left(snapshot: QueueSnapshot, service_class: int) -> float:
    """The part of the slots in use, once all within reach are, that is not of a higher class: by Little's law, its
    part of the service."""
    room = snapshot.rooms[service_class]
    own = room.free_slots + sum(load.running_requests for load in snapshot.classes[service_class:])
    return max(own / (own + room.higher_running), MIN_SHARE) if own else MIN_SHARE


def _half_a_step(snapshot: QueueSnapshot) -> float:
    """A request comes in the middle of a step, on average, if there is one."""
    return 0.5 if any(load.running_requests for load in snapshot.classes) else 0.0


def _steps_to_a_place(snapshot: QueueSnapshot, service_class: int, prompt_tokens: int) -> float:
    """Steps until so many have left that those ahead, and one with this prompt, have their slots and blocks."""
    ahead, lower = snapshot.classes[: service_class + 1], snapshot.classes[service_class + 1 :]
    running = sum(load.running_requests for load in snapshot.classes)
    if not running:
        return 0.0
    yielding = sum(load.running_requests for load in lower)
    waiting = sum(load.waiting_requests for load in ahead) + 1
    room = snapshot.rooms[service_class]
    missing_slots = waiting - room.free_slots - yielding

    held_blocks = max(snapshot.held_blocks / running, 1.0)
    wanted_tokens = sum(load.waiting_tokens for load in ahead) + prompt_tokens
    wanted_blocks = wanted_tokens / BLOCK_TOKENS + waiting
    missing_blocks = wanted_blocks - room.free_blocks - yielding * held_blocks

    leaving = max(missing_slots, missing_blocks / held_blocks, 0.0)
    answer_tokens = sum(load.running_requests * load.answer_tokens for load in snapshot.classes) / running
    return leaving * answer_tokens / running
