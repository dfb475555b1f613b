"""Checks everything about time: charged times, predictions, and the limits of steps."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.request import Phase, Request
from engine.scheduling import Scheduler, StepPlan
from engine.scheduling.allowance import KEPT_THROUGHPUT, MIN_CHUNK_TOKENS
from engine.scheduling.class_activity import ACTIVE_NS
from engine.scheduling.cost import SLOW_STREAK, StepWork, row_work, total
from engine.scheduling.step_limits import STEPS_TO_FIRST_TOKEN, StepLimits
from engine.scheduling.wait import ClassLoad, predict_drain_ns, predict_first_token_ns
from engine.simulation.device import StepTime

GOOD_STEPS = 16
"""Steps without a fault of time after which the scheduler's predictions must be right again."""
MAX_ERROR_FACTOR = 2.0
"""The maximum factor by which they may then be wrong."""
MAX_MISSES = 1 + SLOW_STREAK
"""Exceptions among the last `GOOD_STEPS`. A new mix of work can look like a faster device, which a streak of slow steps
corrects."""


class TimeAuditor:
    """Accounts for the time of one run independently of the scheduler."""

    def __init__(self, config: SchedulerConfig, scheduler: Scheduler, longest_step_ns: int, stages: int = 1) -> None:
        """`stages`: of a pipeline."""
        self._stages = stages
        self._config = config
        self._longest_step_ns = longest_step_ns
        self._decodes: list[StepWork] = []
        """The decode work of each running request before a step is scheduled; each computes at least one token."""
        self._target_ns: int | None = None
        self._running: set[str] = set()
        self._classes = sorted(config.classes, key=lambda service_class: service_class.priority)
        self._scheduler = scheduler
        self._elapsed_ns = 0
        self._misses: deque[bool] = deque(maxlen=GOOD_STEPS)
        self._last_arrival_ns: dict[int, int] = {}
        self._arrived_ns: dict[str, int] = {}
        self._paused_ns: Counter[str] = Counter()

    def on_pause_end(self, request: Request, elapsed_ns: int) -> None:
        """A pause of `elapsed_ns` has ended."""
        self._paused_ns[request.id] += elapsed_ns

    def check_pauses(self, requests: Iterable[Request], total_ns: int) -> None:
        """All pauses have ended and are reported."""
        for request in requests:
            assert request.usage.paused_ns == self._paused_ns[request.id], f"the pauses of {request.id} are miscounted"
        assert total_ns == self._paused_ns.total(), "pauses are miscounted"

    def on_arrival(self, request: Request, now_ns: int) -> None:
        self._arrived_ns[request.id] = now_ns
        self._last_arrival_ns[request.rank] = now_ns

    def check_limits(self, limits: StepLimits, now_ns: int) -> None:
        """Steps are limited for classes with a target only, and more while such a class is active."""
        targets = {
            rank: service_class.ttft_target_ms * 10**6
            for rank, service_class in enumerate(self._classes)
            if service_class.ttft_target_ms
        }
        bounds_ns = {rank: self._bound_ns(rank, target_ns, now_ns) for rank, target_ns in targets.items()}
        if not bounds_ns:
            assert limits.rank == len(self._classes) - 1, "steps are limited without a target"
            return
        tightest = min(bounds_ns, key=lambda rank: (bounds_ns[rank], rank))
        assert limits.rank == tightest, "steps are limited for another class than the tightest"
        tokens, high = limits.prefill_tokens, self._config.step_tokens
        low = min(BLOCK_TOKENS, high)
        assert low <= tokens <= high, "the limit of prefill is out of its bounds"
        assert tokens == low or self._step_ns(tokens) <= bounds_ns[tightest] + 1, "a step may be too long"
        assert tokens == high or self._step_ns(tokens + 2) >= bounds_ns[tightest] - 1, "steps are shorter than needed"

    def before_schedule(self) -> None:
        """Record the decode work of the next step, and the tightest target of the decoding requests."""
        running = list(self._scheduler.running)
        self._running = {request.id for request in running}
        self._decodes = [row_work(request.scheduled, 1) for request in running]
        targets = [
            target_ms * 10**6 // self._stages  # a request has a row in one step of as many
            for request in running
            if (target_ms := request.service_class.itl_target_ms) is not None and self._awaits_next_token(request)
        ]
        self._target_ns = min(targets, default=None)

    def _awaits_next_token(self, request: Request) -> bool:
        computes_last = request.scheduled >= len(request.tokens) - 1
        goes_on = request.scheduled < request.computed_at_end
        return computes_last and goes_on and request.scheduled >= request.prompt_tokens

    def check_length(self, plan: StepPlan) -> None:
        """A step with more than `MIN_CHUNK_TOKENS` of prefill respects the watchdog's limit and the targets. Where a
        target is too tight for prefill, the limit keeps nine tenths of the prefill rate instead."""
        prompts = [row for row in plan.rows if row.tokens - (row.request.id in self._running) - len(row.drafts) > 0]
        more = sum(row.tokens - (row.request.id in self._running) for row in plan.rows)
        if more <= MIN_CHUNK_TOKENS:
            return
        cost = self._scheduler.cost_model
        planned_ns = cost.predict_ns(total(row_work(row.start, row.tokens) for row in plan.rows))
        assert planned_ns <= self._longest_step_ns + 1, f"a step is planned to take {planned_ns} ns"
        if self._target_ns is None or not prompts:
            return
        start = max(row.start for row in prompts)
        decode_ns = cost.predict_ns(total(self._decodes))
        full_ns = cost.row_ns(start, self._config.step_tokens)
        kept_ns = KEPT_THROUGHPUT * full_ns * decode_ns / max(decode_ns + (1 - KEPT_THROUGHPUT) * full_ns, 1.0)
        token_ns = cost.row_ns(start + more, 2) - cost.row_ns(start + more, 1) + 2
        bound_ns = max(self._target_ns, decode_ns + kept_ns + token_ns)
        assert planned_ns <= bound_ns, f"decodes wait {planned_ns} ns for their next token, more than {bound_ns} ns"

    def _bound_ns(self, rank: int, target_ns: int, now_ns: int) -> int:
        last_ns = self._last_arrival_ns.get(rank)
        is_active = last_ns is not None and now_ns - last_ns < ACTIVE_NS
        return target_ns // STEPS_TO_FIRST_TOKEN if is_active else target_ns

    def _step_ns(self, prefill_tokens: int) -> int:
        """The predicted time of a step with all decodes and `prefill_tokens` of a new prompt."""
        rows = [row_work(request.computed, 1) for request in self._scheduler.running]
        return self._scheduler.cost_model.predict_ns(total([*rows, row_work(0, prefill_tokens)]))

    def check_waits(self) -> None:
        """Predicted waits are not negative. Where no class has a larger step share than one above, none waits less."""
        scheduler = self._scheduler
        load, cost = scheduler.snapshot(), scheduler.cost_model
        ranks = range(len(self._classes))
        waits = [predict_first_token_ns(load, rank, BLOCK_TOKENS, cost) for rank in ranks]
        assert all(wait >= 0 for wait in waits)
        shares = [service_class.step_share for service_class in self._classes]
        if shares == sorted(shares, reverse=True):
            assert waits == sorted(waits), "a class is predicted to wait less than one above"
        for rank in ranks:
            waiting = sum(class_load.waiting_requests for class_load in load.classes[: rank + 1])
            assert (predict_drain_ns(load, rank, cost) > 0) <= (waiting > 0), "an empty queue is predicted to take time"

    def check_start(self, requests: Iterable[Request], now_ns: int) -> None:
        """A request that starts has waited since its arrival, without its pauses. `requests`: those in the step, and
        those that are allocating."""
        for request in requests:
            arrived_ns = self._arrived_ns.pop(request.id, None)
            if arrived_ns is not None:
                waited_ns = now_ns - arrived_ns - self._paused_ns[request.id]
                assert request.queue_ns == waited_ns, f"the wait of {request.id} is miscounted"

    def on_drafting(self, elapsed_ns: int) -> None:
        """Drafting before a step took `elapsed_ns`."""
        self._elapsed_ns += elapsed_ns

    def after_step(self, work: StepWork, time: StepTime, good_steps: int) -> None:
        """Compare a step's time with the scheduler's prediction, before the scheduler learns from it. In a pipeline
        that time is between the step's in one stage, where others fill the rest, and that in all."""
        self._elapsed_ns += time.elapsed_ns
        if good_steps <= GOOD_STEPS:
            self._misses.clear()
            return
        predicted_ns = self._scheduler.cost_model.predict_ns(work)
        low, high = time.usual_ns / (MAX_ERROR_FACTOR * self._stages), time.usual_ns * MAX_ERROR_FACTOR
        self._misses.append(not low <= predicted_ns <= high)
        missed = sum(self._misses) > MAX_MISSES
        assert not missed, f"a step of {time.usual_ns} ns is predicted to take {predicted_ns} ns, and others before it"

    def check_books(self, requests: Iterable[Request]) -> None:
        """All time is charged, to the nanosecond, to the classes and to the requests. `requests`: all so far."""
        classes = self._scheduler.stats().classes
        assert sum(stats.attributed_ns for stats in classes) == self._elapsed_ns, "time is lost, or charged twice"
        assert all(0 <= stats.recompute_ns <= stats.attributed_ns for stats in classes)
        charged_ns = sum(request.engine_ns + sum(request.recompute_ns.values()) for request in requests)
        charged_ns += sum(stats.wasted_ns for stats in classes)
        assert charged_ns == self._elapsed_ns, "the requests' time is not that of the steps"

    def check_loads(self, alive: Sequence[Request]) -> None:
        """The load sums match the requests."""
        for rank, load in enumerate(self._scheduler.snapshot().classes):
            own = [request for request in alive if request.rank == rank]
            counted = replace(load, bound_tokens=None, waiting_cached_tokens=0)
            assert counted == _load_of(own, load.answer_tokens), f"the load of class {rank} is miscounted"
            assert load.answer_tokens >= 1.0
            assert 0 <= load.waiting_cached_tokens <= load.waiting_tokens - load.waiting_requests, "more is cached"
            if load.bound_tokens is not None:
                bound_tokens = sum(request.max_tokens for request in own if request.phase is not Phase.PAUSED)
                assert load.bound_tokens == bound_tokens, f"the answers of class {rank} are bounded otherwise"


def _load_of(requests: Sequence[Request], answer_tokens: float) -> ClassLoad:
    waiting = [request for request in requests if request.phase is Phase.WAITING]
    running = [request for request in requests if request.phase is Phase.RUNNING]
    return ClassLoad(
        waiting_requests=len(waiting),
        waiting_tokens=sum(len(request.tokens) for request in waiting),
        waiting_pairs=sum(row_work(0, len(request.tokens)).prefill_pairs for request in waiting),
        running_requests=len(running),
        prefill_tokens=sum(len(request.tokens) - request.computed - 1 for request in running),
        context_tokens=sum(request.computed + 1 for request in running),
        answer_tokens=answer_tokens,
    )
