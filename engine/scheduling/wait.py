"""Predicts a new request's wait for its first token from running sums: O(classes), for any number of queued requests.

Called at each admission, on the event loop. The scheduler keeps a `LoadSums` per class up to date and takes a
`QueueSnapshot` of them after each change; `with_arrivals` adds requests that are admitted and not in the scheduler yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple, Protocol, Self

from engine.config import BLOCK_TOKENS
from engine.scheduling.cost import NO_WORK, StepWork, row_work

ANSWER_MEMORY = 128
"""Answers in a class's moving average of lengths."""
MIN_SHARE = 0.1
"""The minimum share of the engine that a class is assumed to get."""
MIN_RETRY_MS = 100
MAX_RETRY_MS = 600_000
RETRY_SPREAD = 0.1
"""`Retry-After` is spread over this fraction of the wait, so that rejected clients do not retry all at once."""


class StepCost(Protocol):
    """Predicts times of steps."""

    def predict_ns(self, work: StepWork) -> float:
        """The predicted time of a step with this work, in nanoseconds."""
        ...


@dataclass(frozen=True, slots=True)
class ClassLoad:
    """The load of one service class.

    `prefill_tokens`: tokens that its running requests have left to compute, beyond one each.
    `context_tokens`: tokens whose KV its running requests read in each step.
    `answer_tokens`: the expected length of an answer, from completed answers or, before there is one, from the bounds
    of the current requests. `bound_tokens`: the sum of those bounds; None where it is from completed answers.
    `waiting_cached_tokens`: of `waiting_tokens`, those that the prefix cache has as of the snapshot, for the requests
    that were looked up; a token of each request has to be computed.
    """

    waiting_requests: int = 0
    waiting_tokens: int = 0
    waiting_pairs: int = 0
    running_requests: int = 0
    prefill_tokens: int = 0
    context_tokens: int = 0
    answer_tokens: float = 1.0
    bound_tokens: int | None = None
    waiting_cached_tokens: int = 0

    @property
    def uncached_tokens(self) -> int:
        """Tokens that the waiting requests have to compute, at least one each."""
        return max(self.waiting_tokens - self.waiting_cached_tokens, min(self.waiting_requests, self.waiting_tokens))

    @property
    def uncached_pairs(self) -> int:
        """Attention pairs of these tokens, as their share of all."""
        return self.waiting_pairs * self.uncached_tokens // max(self.waiting_tokens, 1)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Sums over requests of one class that are admitted and not in the scheduler yet: prompt tokens, attention pairs,
    and the maximum tokens of their answers."""

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
class ClassCapacity:
    """The capacity available to a class.

    `free_slots`, `free_blocks`: free and not reserved for the classes above.
    `prefill_step_tokens`: tokens of prefill in a step, in addition to one token for each running request.
    `higher_running`: running requests of higher classes, a moving average.
    """

    free_slots: int
    free_blocks: int
    prefill_step_tokens: float
    higher_running: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The load and the capacity of each class, by rank. `held_blocks`: the blocks of all running requests."""

    classes: tuple[ClassLoad, ...]
    capacities: tuple[ClassCapacity, ...]
    held_blocks: int

    def with_arrivals(self, arrivals: Sequence[Arrivals]) -> Self:
        """The snapshot with later arrivals, by class, added to the queues."""
        classes = tuple(map(_with_arrivals, self.classes, arrivals))
        return replace(self, classes=classes)

    def without_cached(self, cached_tokens: Sequence[int]) -> Self:
        """The snapshot with at least `cached_tokens` of each class, by rank, in the prefix cache for the waiting
        requests, as the caller knows of its own. They may be among those that the snapshot counts."""
        return replace(self, classes=tuple(map(_with_cached, self.classes, cached_tokens)))

    def without_waiting(self, service_class: int, *, requests: int, tokens: int, pairs: int) -> Self:
        """The snapshot without some waiting requests of a class, given by their number and sums."""
        load = self.classes[service_class]
        shorter = replace(
            load,
            waiting_requests=load.waiting_requests - requests,
            waiting_tokens=max(load.waiting_tokens - tokens, 0),
            waiting_pairs=max(load.waiting_pairs - pairs, 0),
        )
        if load.waiting_cached_tokens:  # the rest has its share of them
            rest = load.waiting_cached_tokens * shorter.waiting_tokens // max(load.waiting_tokens, 1)
            shorter = replace(shorter, waiting_cached_tokens=rest)
        return replace(self, classes=(*self.classes[:service_class], shorter, *self.classes[service_class + 1 :]))

    def queue_depth(self, arrivals: Sequence[Arrivals]) -> int:
        """Waiting requests, including later arrivals that will not find a free slot and blocks.

        Where no request waits in their class or above, arrivals take the free capacity, the highest class first.
        """
        depth = slots = blocks = waiting = 0
        for load, capacity, arrived in zip(self.classes, self.capacities, arrivals, strict=True):
            waiting += load.waiting_requests
            placed = 0
            if arrived.requests and not waiting:
                mean_blocks = ceil(arrived.tokens / BLOCK_TOKENS / arrived.requests) + 1
                fitting = min(capacity.free_slots - slots, (capacity.free_blocks - blocks) // mean_blocks)
                placed = max(min(arrived.requests, fitting), 0)
                slots, blocks = slots + placed, blocks + placed * mean_blocks
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
    """The expected length of an answer before any is complete: half of the mean bound."""
    return max(bound_tokens / 2 / max(requests, 1), 1.0)


class LoadSums:
    """Running sums of one class, from which `ClassLoad` is made. Updated at each change of a request's state.

    `tokens`: a request's prompt and answer so far; `max_tokens`: the bound of its answer. All tokens of a waiting
    request are in the sums; what the cache has of them changes with every step, and is looked up by the snapshot. A
    request is removed with the values that it was added with, plus its part of `advance`, so the sums of an empty
    scheduler are zero.
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
        """Running requests of the class computed `computed` tokens and sampled `sampled` new ones."""
        self._computed_tokens += computed
        self._running_tokens += sampled

    def observe_answer(self, output_tokens: int) -> None:
        """Record the length of the answer of a request that ended in any way. Recent answers count most."""
        self._answers = min(self._answers + 1, ANSWER_MEMORY)
        self._answer_tokens += (output_tokens - self._answer_tokens) / self._answers

    @property
    def waiting_requests(self) -> int:
        return self._waiting_requests

    @property
    def answer_tokens(self) -> float:
        """The expected length of an answer: the recent mean or, before there is one, half of the mean bound."""
        if self._answers:
            return max(self._answer_tokens, 1.0)
        return _estimated_answer(self._bound_tokens, self._waiting_requests + self._running_requests)

    @property
    def context_tokens(self) -> int:
        """Tokens whose KV the running requests read in a step."""
        return self._computed_tokens + self._running_requests

    def load(self, waiting_cached_tokens: int = 0) -> ClassLoad:
        return ClassLoad(
            waiting_requests=self._waiting_requests,
            waiting_tokens=self._waiting_tokens,
            waiting_pairs=self._waiting_pairs,
            running_requests=self._running_requests,
            prefill_tokens=max(self._running_tokens - self._computed_tokens - self._running_requests, 0),
            context_tokens=self.context_tokens,
            answer_tokens=self.answer_tokens,
            bound_tokens=None if self._answers else self._bound_tokens,
            waiting_cached_tokens=waiting_cached_tokens,
        )

    def check(self) -> None:
        """Assert the invariants that hold between any two calls."""
        assert min(self._waiting_requests, self._waiting_tokens, self._waiting_pairs, self._bound_tokens) >= 0
        assert self._running_requests >= 0
        assert 0 <= self._computed_tokens <= self._running_tokens
        assert self._waiting_requests or not self._waiting_tokens, "waiting tokens without a waiting request"
        assert self._running_requests or not self._running_tokens, "running tokens without a running request"

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


def predict_first_token_ns(
    snapshot: QueueSnapshot, service_class: int, prompt_tokens: int, cost: StepCost, cached_tokens: int = 0
) -> int:
    """The predicted time until a request that arrives now has its first token. `service_class`: the class's rank.
    `cached_tokens`: of its prompt, found in the prefix cache.

    Ahead of it are the waiting requests of its class and of higher ones, and the prefill of all running requests. It
    starts when their prefill is computed, and when there are slots and blocks for them and for it.

    - Steps of prefill: tokens ahead, divided by the prefill tokens of a step.
    - Steps until slots and blocks are free: with R running requests and answers of L tokens, R / L requests end per
      step, for any distribution of lengths, while slots are refilled. Lower classes are preempted. Free slots are
      filled by the requests ahead first, and R includes those.
    - A step takes the time of its decode work; the marginal cost of the prefill is added.

    The prefill of the requests ahead is without what the prefix cache has for them. They need blocks and slots for all
    of it. Higher-class requests that arrive later go first too; their expected share of the engine is their recent one.
    Drafts are not predicted; they shorten the wait.
    """
    sums, capacity = _sums_of(snapshot, service_class), snapshot.capacities[service_class]
    step_tokens = max(capacity.prefill_step_tokens, 1)
    prefill_tokens = sums.uncached_tokens + sums.prefill_tokens
    decode_ns = cost.predict_ns(StepWork(sums.running, sums.context_tokens, 0, sums.running))
    steps_to_a_slot = _steps_to_a_slot(sums, capacity)
    queue_ns = max(
        prefill_tokens / step_tokens * decode_ns,
        steps_to_a_slot * cost.predict_ns(_decode_work_when_full(sums, capacity)) if steps_to_a_slot else 0.0,
        _steps_to_blocks(snapshot, sums, capacity, prompt_tokens) * decode_ns,
    )
    queue_ns /= _share_left(sums, capacity)
    own_tokens = prompt_tokens - cached_tokens
    own_steps = max(ceil(own_tokens / step_tokens), 1) + (0.5 if sums.running else 0.0)
    own = row_work(cached_tokens, own_tokens) if own_tokens else NO_WORK
    prefill = StepWork(
        tokens=prefill_tokens + own_tokens,
        context_tokens=0,
        prefill_pairs=sums.uncached_pairs + own.prefill_pairs,
        rows=0,
    )
    prefill_ns = cost.predict_ns(prefill) - cost.predict_ns(NO_WORK)
    return int(queue_ns + own_steps * decode_ns + prefill_ns)


def predict_drain_ns(snapshot: QueueSnapshot, service_class: int, cost: StepCost) -> int:
    """The predicted time until all requests that wait now in this class and in higher ones have their first token.

    0 where none waits: running requests are not a queue.
    """
    if not any(load.waiting_requests for load in snapshot.classes[: service_class + 1]):
        return 0
    return predict_first_token_ns(snapshot, service_class, 0, cost)


def retry_after_ms(drain_ns: int, spread: float) -> int:
    """When a rejected client should retry: after the queue has drained, plus a random part.

    `spread`: in [0, 1), different for each client, so that they do not retry all at once.
    """
    wait_ms = ceil(drain_ns * (1.0 + RETRY_SPREAD * spread) / 1e6)
    return min(max(wait_ms, MIN_RETRY_MS), MAX_RETRY_MS)


def _with_cached(load: ClassLoad, cached_tokens: int) -> ClassLoad:
    if cached_tokens <= load.waiting_cached_tokens:
        return load
    return replace(load, waiting_cached_tokens=cached_tokens)


class _Sums(NamedTuple):
    """Sums over the classes, made in one pass.

    `waiting`, `waiting_tokens`: of the requests ahead, waiting in the class and in higher ones. `uncached_tokens`,
    `uncached_pairs`: what these have to compute.
    `own`: running requests of the class and of lower ones. `yielding`: those of lower ones, which can be preempted.
    `running`, `prefill_tokens`, `context_tokens`: of all running requests. `answer_tokens`: the expected length of the
    answers that have to end first: of the running requests or, where none runs, the maximum of the classes ahead.
    """

    waiting: int
    waiting_tokens: int
    uncached_tokens: int
    uncached_pairs: int
    running: int
    own: int
    yielding: int
    prefill_tokens: int
    context_tokens: int
    answer_tokens: float


def _sums_of(snapshot: QueueSnapshot, service_class: int) -> _Sums:
    waiting = waiting_tokens = uncached_tokens = uncached_pairs = 0
    running = own = yielding = prefill_tokens = context_tokens = 0
    all_answers, longest = 0.0, None
    for rank, load in enumerate(snapshot.classes):
        running += load.running_requests
        prefill_tokens += load.prefill_tokens
        context_tokens += load.context_tokens
        all_answers += load.running_requests * load.answer_tokens
        if rank > service_class:
            yielding += load.running_requests
            continue
        if rank == service_class:
            own = load.running_requests
        waiting += load.waiting_requests
        waiting_tokens += load.waiting_tokens
        uncached_tokens += load.uncached_tokens
        uncached_pairs += load.uncached_pairs
        if load.waiting_requests and (longest is None or load.answer_tokens > longest):
            longest = load.answer_tokens
    answer_tokens = all_answers / running if running else 1.0 if longest is None else longest
    return _Sums(
        waiting=waiting,
        waiting_tokens=waiting_tokens,
        uncached_tokens=uncached_tokens,
        uncached_pairs=uncached_pairs,
        running=running,
        own=own + yielding,
        yielding=yielding,
        prefill_tokens=prefill_tokens,
        context_tokens=context_tokens,
        answer_tokens=answer_tokens,
    )


def _decode_work_when_full(sums: _Sums, capacity: ClassCapacity) -> StepWork:
    """The decode work of a step when the requests ahead have taken the free slots."""
    started = max(capacity.free_slots, 0)
    context_tokens = started * sums.waiting_tokens // max(sums.waiting, 1)
    rows = sums.running + started
    return StepWork(rows, sums.context_tokens + context_tokens, 0, rows)


def _share_left(sums: _Sums, capacity: ClassCapacity) -> float:
    """The fraction of the engine that is not used by higher classes: by Little's law, the fraction of the slots, when
    all slots that are available to the class are in use."""
    own = capacity.free_slots + sums.own
    return max(own / (own + capacity.higher_running), MIN_SHARE) if own else MIN_SHARE


def _steps_to_a_slot(sums: _Sums, capacity: ClassCapacity) -> float:
    """Steps until enough requests have ended that those ahead, and one more, have slots."""
    missing_slots = sums.waiting + 1 - capacity.free_slots - sums.yielding
    if missing_slots <= 0:
        return 0.0
    return missing_slots * sums.answer_tokens / max(sums.running + capacity.free_slots, 1)


def _steps_to_blocks(snapshot: QueueSnapshot, sums: _Sums, capacity: ClassCapacity, prompt_tokens: int) -> float:
    """Steps until enough requests have ended that those ahead, and one with this prompt, have blocks."""
    running: float = sums.running
    waiting = sums.waiting + 1
    wanted_blocks = (sums.waiting_tokens + prompt_tokens) / BLOCK_TOKENS + waiting
    if running:
        held_blocks = max(snapshot.held_blocks / running, 1.0)
    else:  # the first requests ahead will be the running ones
        held_blocks = wanted_blocks / waiting
        running = max(capacity.free_blocks / held_blocks, 1.0)
    missing_blocks = wanted_blocks - capacity.free_blocks - sums.yielding * held_blocks
    return max(missing_blocks, 0.0) / held_blocks * sums.answer_tokens / running
