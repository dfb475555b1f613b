"""Decides what each step computes, and does the bookkeeping of what came out."""

from dataclasses import dataclass
from heapq import heappop, heappush

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.memory.kv_cache import BlockCopy, KVCacheManager
from engine.request import FinishReason, Phase, Request, TokenDelta, TokenLogprob, UnservableRequest
from engine.scheduling.order import OrderedQueue, order_key
from engine.scheduling.plan import RowResult, ScheduledRow, StepPlan, StepResult
from engine.scheduling.stopping import stop_after_token
from engine.scheduling.victims import choose_victim

LOOK_AHEAD = 256
"""How many waiting requests that cannot start yet are passed over, at most, to find one that can."""


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """What the scheduler holds now, and what it has done since it was made (`_total`)."""

    running: int
    waiting: int
    free_blocks: int
    num_blocks: int
    steps_total: int
    scheduled_tokens_total: int
    cached_tokens_total: int
    preemptions_total: int
    failures_total: int


class Scheduler:
    """Owns the requests of one model from `add` to their last delta. Single-threaded; one plan in flight.

    There is no prefill phase and no decode phase: a request has `tokens`, of which the KV of the first `computed`
    is there, and a step hands out a budget of tokens so that the second number catches up with the first.

    It reads no clock, draws no random number and iterates ordered containers only: equal calls give equal plans.
    A step costs O(running requests + blocks that are allocated or published).
    """

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager, max_model_len: int) -> None:
        self._config = config
        self._cache = cache
        self._window_tokens = min(max_model_len, cache.capacity_tokens)
        self._requests: dict[str, Request] = {}
        self._running = OrderedQueue()
        self._waiting = OrderedQueue()
        self._free_slots = list(range(config.max_running))
        self._in_flight: StepPlan | None = None
        self._steps = 0
        self._scheduled_tokens = 0
        self._cached_tokens = 0
        self._preemptions = 0
        self._failures = 0

    @property
    def window_tokens(self) -> int:
        """The most tokens that prompt and answer may have together: the model's window, or what the pool holds."""
        return self._window_tokens

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            running=len(self._running),
            waiting=len(self._waiting),
            free_blocks=self._cache.free_blocks,
            num_blocks=self._cache.num_blocks,
            steps_total=self._steps,
            scheduled_tokens_total=self._scheduled_tokens,
            cached_tokens_total=self._cached_tokens,
            preemptions_total=self._preemptions,
            failures_total=self._failures,
        )

    def add(self, request: Request) -> None:
        """Let a new request wait for its turn. A fork comes after the request that it forks.

        Raises:
            UnservableRequest: the prompt is empty, or it leaves no room for a single token where one is wanted.
        """
        assert request.phase is Phase.WAITING, f"{request.id} is not new"
        assert request.id not in self._requests, f"{request.id} is already here"
        assert len(request.tokens) == request.prompt_tokens, f"{request.id} starts with tokens of an answer"
        assert request.fork_of is None or order_key(request.fork_of) < order_key(request)
        if not request.tokens:
            raise UnservableRequest("the prompt has no tokens")
        if request.prompt_tokens + min(request.max_tokens, 1) > self._window_tokens:
            raise UnservableRequest(
                f"the prompt has {request.prompt_tokens} tokens; prompt and answer can have {self._window_tokens}"
            )
        self._requests[request.id] = request
        self._waiting.add(request)

    def abort(self, request_id: str) -> bool:
        """End a request at once, wherever it stands. Its blocks are free on return. False: it is not here."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._remove(request)
        return True

    def preempt(self, request_id: str) -> bool:
        """Take a running request's blocks and slot away; it keeps its place and its tokens. False: not running."""
        request = self._requests.get(request_id)
        if request is None or request.phase is not Phase.RUNNING:
            return False
        self._preempt(request)
        return True

    def schedule(self) -> StepPlan | None:
        """The next step, or None where there is nothing to compute. `commit` or `fail` it before the next."""
        assert self._in_flight is None, "the last plan is neither committed nor failed"
        rows, spare_tokens, preempted = self._schedule_running()
        copies: list[BlockCopy] = []
        if not preempted:
            spare_tokens = self._schedule_waiting(rows, copies, spare_tokens)
        if not rows:
            return None
        self._steps += 1
        self._scheduled_tokens += self._config.step_tokens - spare_tokens
        self._in_flight = StepPlan(self._steps, tuple(rows), tuple(copies))
        return self._in_flight

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        """Take in what a step computed. Rows of requests that have left or been preempted since are dropped."""
        self._land(plan)
        deltas = []
        for row, outcome in zip(plan.rows, result.rows, strict=True):
            if row.request.phase is Phase.RUNNING:
                delta = self._advance(row, outcome)
                if delta is not None:
                    deltas.append(delta)
        return deltas

    def fail(self, plan: StepPlan, error: str) -> list[TokenDelta]:
        """The step could not be computed: all requests in it end, and nothing that it wrote is reused."""
        self._land(plan)
        return [self._fail(row.request, error) for row in plan.rows if row.request.phase is Phase.RUNNING]

    def check(self) -> None:
        """State what holds between any two calls."""
        self._running.check()
        self._waiting.check()
        here = [*self._running, *self._waiting]
        assert sorted(request.id for request in here) == sorted(self._requests), "a request is lost, or twice here"
        for request in self._running:
            assert request.phase is Phase.RUNNING
            assert request.computed < len(request.tokens), f"{request.id} has nothing to compute"
        for request in self._waiting:
            assert request.phase is Phase.WAITING
            assert request.slot is None, f"{request.id} waits with a slot"
            assert request.computed == 0, f"{request.id} waits with computed tokens"
            assert not request.block_table, f"{request.id} waits with blocks"
        for request in here:
            assert len(request.tokens) < self._window_tokens or request.max_tokens == 0
        slots = sorted([request.slot for request in self._running if request.slot is not None] + self._free_slots)
        assert slots == list(range(self._config.max_running)), "a slot is lost, or twice in use"
        self._cache.check(here)

    def _schedule_running(self) -> tuple[list[ScheduledRow], int, bool]:
        """Rows for the running requests, tokens left of the budget, and whether anyone had to give way.

        The demand for blocks is known, and met, before the first row is final, so that nothing is unwound.
        """
        preempted = False
        while True:
            rows, growing, spare_tokens = self._grant()
            demand = sum(self._cache.blocks_needed(row.request, row.start + row.tokens) for row in growing)
            if demand <= self._cache.free_blocks:
                break
            self._preempt(choose_victim(self._running))
            preempted = True
        for row in growing:
            grown = self._cache.grow(row.request, row.start + row.tokens)
            assert grown, "the demand for blocks was met and is not"
        return rows, spare_tokens, preempted

    def _grant(self) -> tuple[list[ScheduledRow], list[ScheduledRow], int]:
        """Divide the step's tokens among the running requests: one each, then what more they want, in order.

        Returns the rows, those of them that need another block, and the tokens left over. Changes nothing.
        """
        spare_tokens = self._config.step_tokens - len(self._running)
        chunk_tokens = self._config.chunk_tokens
        rows, growing = [], []
        for request in self._running:
            start = request.computed
            wanted = len(request.tokens) - start
            tokens = wanted
            if wanted > 1:
                tokens = min(wanted, chunk_tokens, 1 + spare_tokens)
                spare_tokens -= tokens - 1
            row = ScheduledRow(request, start, tokens, tokens == wanted and request.max_tokens > 0)
            rows.append(row)
            if start + tokens > len(request.block_table) * BLOCK_TOKENS:
                growing.append(row)
        return rows, growing, spare_tokens

    def _schedule_waiting(self, rows: list[ScheduledRow], copies: list[BlockCopy], spare_tokens: int) -> int:
        """Admit waiting requests, in order, while there are tokens, slots and blocks for them; returns tokens left.

        No thrash: a request gets the blocks of all its tokens at once, and only if each running request, itself
        included, could then still grow by a block. They grow by one in 16 steps at most, so nobody is preempted
        in the 16 steps after an admission. A request alone needs no such reserve.
        """
        passed_over = 0
        while spare_tokens > 0 and self._free_slots and passed_over < min(len(self._waiting), LOOK_AHEAD):
            request = self._waiting[passed_over]
            parent = request.fork_of
            if parent is not None and self._awaits_prompt(parent):
                passed_over += 1
                continue
            keep_free = len(self._running) + 1 if self._running else 0
            if parent is not None and _can_fork(parent, request):
                copied = self._cache.fork(parent, request, keep_free=keep_free)
                if copied is None:
                    break
                copies += copied
            elif not self._cache.admit(request, keep_free=keep_free):
                break
            self._start(request)
            wanted = len(request.tokens) - request.computed
            tokens = min(wanted, self._config.chunk_tokens, spare_tokens)
            spare_tokens -= tokens
            samples = tokens == wanted and request.max_tokens > 0
            rows.append(ScheduledRow(request, request.computed, tokens, samples))
        return spare_tokens

    def _awaits_prompt(self, parent: Request) -> bool:
        """Will the KV of the parent's prompt be there later, but is not yet? Not if it has left or never came."""
        return self._requests.get(parent.id) is parent and parent.computed < parent.prompt_tokens

    def _start(self, request: Request) -> None:
        self._waiting.remove(request)
        self._running.add(request)
        request.phase = Phase.RUNNING
        request.slot = heappop(self._free_slots)
        request.fork_of = None  # from now on it is a request like any other, and need not keep its parent alive
        if request.preemptions == 0:
            self._cached_tokens += request.cached_tokens

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self._give_back_slot(request)
        self._cache.release(request)
        if request.output_tokens == 0:
            request.prompt_logprobs.clear()  # they are computed anew
        request.preemptions += 1
        request.phase = Phase.WAITING
        self._waiting.add(request)
        self._preemptions += 1

    def _advance(self, row: ScheduledRow, outcome: RowResult) -> TokenDelta | None:
        """Move a request past what its row computed; None where there is nothing to hand out."""
        request = row.request
        if not outcome.finite:
            return self._fail(request, "the model's output is not finite")
        self._cache.commit(request, row.tokens)
        if request.params.prompt_logprobs is not None and request.output_tokens == 0:
            if row.start == 0:
                request.prompt_logprobs.append(None)  # nothing predicts the first token
            request.prompt_logprobs += outcome.prompt_logprobs
        if not row.samples:
            prompt_only = request.max_tokens == 0 and request.computed == request.prompt_tokens
            return self._finish(request, FinishReason.LENGTH) if prompt_only else None

        assert outcome.token is not None, f"{request.id} was to get a token and did not"
        request.tokens.append(outcome.token)
        stop = stop_after_token(request, self._window_tokens)
        token_ids = (outcome.token,) if stop is None or stop.token is None else ()
        logprobs = (outcome.logprob,) if token_ids and outcome.logprob is not None else ()
        if stop is not None:
            return self._finish(request, stop.reason, token_ids, logprobs, stop_token=stop.token)
        if request.prompt_logprobs:
            return TokenDelta(request.id, token_ids, logprobs, _take_prompt_logprobs(request))
        return TokenDelta(request.id, token_ids, logprobs)

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
        stop_token: int | None = None,
    ) -> TokenDelta:
        self._remove(request)
        return TokenDelta(
            request.id,
            token_ids,
            logprobs,
            _take_prompt_logprobs(request),
            finish_reason=reason,
            stop_token=stop_token,
            usage=request.usage,
        )

    def _fail(self, request: Request, error: str) -> TokenDelta:
        self._failures += 1
        self._remove(request, forget=True)
        return TokenDelta(request.id, finish_reason=FinishReason.ERROR, usage=request.usage, error=error)

    def _remove(self, request: Request, *, forget: bool = False) -> None:
        """The one way out of the scheduler."""
        if request.phase is Phase.RUNNING:
            self._running.remove(request)
            self._give_back_slot(request)
            self._cache.release(request, forget=forget)
        else:
            self._waiting.remove(request)
        request.phase = Phase.FINISHED
        del self._requests[request.id]

    def _give_back_slot(self, request: Request) -> None:
        assert request.slot is not None, f"{request.id} runs without a slot"
        heappush(self._free_slots, request.slot)
        request.slot = None

    def _land(self, plan: StepPlan) -> None:
        assert plan is self._in_flight, "this is not the plan in flight"
        self._in_flight = None


def _can_fork(parent: Request, child: Request) -> bool:
    """Is the parent's KV of the common prompt there, and does the child want no part of it computed anew?"""
    return parent.phase is Phase.RUNNING and child.params.prompt_logprobs is None


def _take_prompt_logprobs(request: Request) -> tuple[TokenLogprob | None, ...]:
    """They are delivered once, on the first delta."""
    taken = tuple(request.prompt_logprobs)
    request.prompt_logprobs.clear()
    return taken
