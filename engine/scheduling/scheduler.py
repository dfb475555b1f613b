"""Decides what each step computes, and does the bookkeeping of what came out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.memory.kv_cache import BlockCopy, BlockDemand, KVCacheManager
from engine.memory.reservation import Reservation
from engine.request import FinishReason, Phase, Request, TokenDelta, TokenLogprob, UnservableRequest
from engine.scheduling.cost import StepCostModel, StepWork
from engine.scheduling.fair_queue import INPUT_SERVICE, OUTPUT_SERVICE, FairQueue
from engine.scheduling.ledger import ClassStats, Ledger
from engine.scheduling.order import RankedQueue, order_key
from engine.scheduling.plan import RowResult, ScheduledRow, StepPlan, StepResult
from engine.scheduling.preemption_budget import PreemptionBudget
from engine.scheduling.service_window import ServiceWindow, jain_index
from engine.scheduling.stopping import stop_after_token
from engine.scheduling.victims import victim_of_growth, victims_for_waiting
from engine.scheduling.wait import LoadSums, QueueSnapshot

STEPS_TO_FIRST_TOKEN = 10
"""So many steps of the longest kind fit the target of a class for its first token."""

TARGET_MEMORY_NS = 60 * 1_000_000_000
"""How long after its last request a class's target still binds the steps of all."""


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """What the scheduler holds now, and what it has done since it was made (`_total`). `classes` from the highest."""

    running: int
    waiting: int
    free_blocks: int
    num_blocks: int
    steps_total: int
    scheduled_tokens_total: int
    cached_tokens_total: int
    preemptions_total: int
    failures_total: int
    classes: tuple[ClassStats, ...] = ()


@dataclass(frozen=True, slots=True)
class StepGuard:
    """The classes below `rank` may have at most `prefill_tokens` of prefill each in a step."""

    rank: int
    prefill_tokens: int


@dataclass(slots=True)
class _Draft:
    """A step in the making. `open_ranks` is how many classes, from the highest, may still have requests admitted."""

    budget_tokens: int
    spare_tokens: int
    open_ranks: int
    guard: StepGuard | None
    rows: list[ScheduledRow] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)


class Scheduler:
    """Owns the requests of one model from `add` to their last delta. Single-threaded; one plan in flight.

    There is no prefill phase and no decode phase: a request has `tokens`, of which the KV of the first `computed`
    is there, and a step hands out a budget of tokens so that the second number catches up with the first.

    Classes are ranks here, 0 the highest; there is a queue of each kind for each. A step is planned from the highest
    to the lowest, so that a class is served, and takes victims below, before any row of the classes below is made.

    It reads no clock, draws no random number and iterates ordered containers only: equal calls give equal plans.
    A step costs O(running requests + blocks that are allocated or published).
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCacheManager,
        max_model_len: int,
        cost_model: StepCostModel | None = None,
    ) -> None:
        classes = tuple(sorted(config.classes, key=lambda each: each.priority))
        self._config = config
        self._cache = cache
        self._classes = classes
        self._ranks = range(len(classes))
        self._rank_of = {each.name: rank for rank, each in enumerate(classes)}
        cache.reserve(classes, config.tenant_cache_fraction)
        self._windows = [min(max_model_len, cache.capacity_tokens(rank)) for rank in self._ranks]
        self._requests: dict[str, Request] = {}
        self._running = RankedQueue(len(classes))
        self._waiting = [FairQueue(each.weight) for each in classes]
        self._service = [ServiceWindow() for _ in classes]
        self._forks: dict[str, list[Request]] = {}
        """Requests that wait for the prompt of the one they fork, by the id of that one."""
        self._free_slots = list(range(config.max_running))
        self._slots = Reservation([int(each.reserved_fraction * config.max_running) for each in classes])
        self._preemption_budget = PreemptionBudget(config.tenant_preemptions, config.preemption_window_steps)
        self.cost_model = cost_model or StepCostModel()
        """What steps cost on this machine, learnt from them."""
        self._ledger = Ledger(len(classes), self.cost_model)
        self._loads = [LoadSums() for _ in classes]
        self._in_flight: StepPlan | None = None
        self._now_ns = 0
        self._last_arrival_ns: list[int | None] = [None for _ in classes]
        self._steps = 0
        self._scheduled_tokens = 0
        self._cached_tokens = 0
        self._preemptions = 0
        self._failures = 0

    @property
    def window_tokens(self) -> int:
        """The most tokens that prompt and answer may have together in the highest class, and so in any."""
        return self._windows[0]

    def window_tokens_of(self, service_class: str) -> int:
        """The same for one class: the model's window, or what of the pool is not reserved above it."""
        return self._windows[self._rank_of[service_class]]

    def step_guard(self, now_ns: int) -> StepGuard | None:
        """What keeps steps short enough for the class with the tightest target for its first token.

        None where no class with a target has had a request for `TARGET_MEMORY_NS`: small steps cost throughput, which
        nobody should pay for a class that does not come. A first token waits for the rest of the step under way, and
        then takes a step or two of its own prompt and what a busy machine adds; so a step of the classes below gets a
        share of the target.
        """
        guarded = [
            (each.ttft_target_ms, rank)
            for rank, each in enumerate(self._classes)
            if each.ttft_target_ms is not None
            and (last_ns := self._last_arrival_ns[rank]) is not None
            and now_ns - last_ns < TARGET_MEMORY_NS
        ]
        if not guarded:
            return None
        target_ms, rank = min(guarded)
        running = len(self._running)
        context = sum(request.computed for ranked in self._running.ranks for request in ranked) + running
        decode = StepWork(running, context, 0, running)
        target_ns = target_ms * 1_000_000 // STEPS_TO_FIRST_TOKEN
        most = self._config.step_tokens
        tokens = self.cost_model.token_budget(target_ns, decode, low=min(BLOCK_TOKENS, most), high=most)
        return StepGuard(rank, tokens)

    def rank_of(self, service_class: str) -> int:
        """A class's place among the classes, 0 the highest."""
        return self._rank_of[service_class]

    def snapshot(self) -> QueueSnapshot:
        """The load of each class, for predicting waits. O(classes)."""
        return QueueSnapshot(
            tuple(sums.load() for sums in self._loads),
            free_slots=len(self._free_slots),
            free_blocks=self._cache.free_blocks,
            num_blocks=self._cache.num_blocks,
            prefill_step_tokens=self._config.step_tokens - len(self._running),
        )

    @property
    def waiting_queues(self) -> Sequence[FairQueue]:
        """Those that wait, by rank, beside forks whose parent has yet to compute the prompt."""
        return self._waiting

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def stats(self, now_ns: int | None = None) -> SchedulerStats:
        """May be called while another thread steps. `now_ns`: None for the time of the last step.

        O(requests + tenants served of late).
        """
        now_ns = self._now_ns if now_ns is None else now_ns
        running = len(self._running)
        waiting: list[list[Request]] = [[] for _ in self._ranks]
        for request in list(self._requests.values()):
            if request.phase is Phase.WAITING:
                waiting[request.rank].append(request)
        return SchedulerStats(
            running=running,
            waiting=len(self._requests) - running,
            free_blocks=self._cache.free_blocks,
            num_blocks=self._cache.num_blocks,
            steps_total=self._steps,
            scheduled_tokens_total=self._scheduled_tokens,
            cached_tokens_total=self._cached_tokens,
            preemptions_total=self._preemptions,
            failures_total=self._failures,
            classes=tuple(self._class_stats(rank, waiting[rank], now_ns) for rank in self._ranks),
        )

    def _class_stats(self, rank: int, waiting: Sequence[Request], now_ns: int) -> ClassStats:
        account = self._ledger.accounts[rank]
        served = self._service[rank].by_tenant(now_ns)
        active = served.keys() | {request.tenant for request in waiting}
        return ClassStats(
            name=self._classes[rank].name,
            running=len(self._running.ranks[rank]),
            waiting=len(waiting),
            queue_age_ns=max(0, now_ns - min((request.waiting_since_ns for request in waiting), default=now_ns)),
            held_blocks=self._cache.held_blocks(rank),
            reserved_blocks=self._cache.unused_reserve(rank),
            cached_blocks=self._cache.cached_blocks(rank),
            attributed_ns=account.attributed_ns,
            recompute_ns=account.recompute_ns,
            recomputed_tokens=account.recomputed_tokens,
            preemptions_caused=account.preemptions_caused,
            preemptions_suffered=account.preemptions_suffered,
            active_tenants=len(active),
            fairness=jain_index([served[tenant] for tenant in active]),
        )

    def add(self, request: Request, now_ns: int = 0) -> None:
        """Let a new request wait for its turn. A fork comes after the request that it forks.

        Raises:
            UnservableRequest: its class is not one of the configured ones, the prompt is empty, or it leaves no room
                for a single token where one is wanted.
        """
        assert request.phase is Phase.WAITING, f"{request.id} is not new"
        assert request.id not in self._requests, f"{request.id} is already here"
        assert len(request.tokens) == request.prompt_tokens, f"{request.id} starts with tokens of an answer"
        assert request.fork_of is None or order_key(request.fork_of) < order_key(request)
        rank = self._rank_of.get(request.service_class.name)
        if rank is None:
            raise UnservableRequest(f"there is no service class {request.service_class.name!r} here")
        if not request.tokens:
            raise UnservableRequest("the prompt has no tokens")
        if request.prompt_tokens + min(request.max_tokens, 1) > self._windows[rank]:
            raise UnservableRequest(self._too_long(request.prompt_tokens, rank))
        request.rank = rank
        request.service_class = self._classes[rank]
        request.arrived_ns = request.waiting_since_ns = self._last_arrival_ns[rank] = now_ns
        self._requests[request.id] = request
        self._wait(request)

    def _too_long(self, prompt_tokens: int, rank: int) -> str:
        message = f"the prompt has {prompt_tokens} tokens; prompt and answer can have {self._windows[rank]}"
        if self._windows[rank] == self._windows[0]:
            return message
        total, window = self._cache.capacity_tokens(), self._windows[rank]
        name = self._classes[rank].name
        return f"{message} in class {name}: KV memory for {total} tokens, less {total - window} reserved above it"

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
        self._preempt(request, cause=request.rank)
        return True

    def schedule(
        self, now_ns: int = 0, *, budget: int | None = None, guard: StepGuard | None = None
    ) -> StepPlan | None:
        """The next step, or None where there is nothing to compute. `commit` or `fail` it before the next.

        `budget` lowers the tokens of this step; each running request gets one in any case. `guard` bounds the prefill
        of lower classes.
        """
        assert self._in_flight is None, "the last plan is neither committed nor failed"
        self._now_ns = now_ns
        open_ranks = self._grow_running()
        running = len(self._running)
        most = self._config.step_tokens
        budget_tokens = most if budget is None else min(max(budget, running + 1), most)
        draft = _Draft(budget_tokens, budget_tokens - running, open_ranks, guard)
        for rank in self._ranks:
            chunk_tokens = self._plan_running(draft, rank)
            if rank < draft.open_ranks:
                self._plan_waiting(draft, rank, chunk_tokens)
        if not draft.rows:
            return None
        self._steps += 1
        self._scheduled_tokens += draft.budget_tokens - draft.spare_tokens
        self._in_flight = StepPlan(self._steps, tuple(draft.rows), tuple(draft.copies))
        return self._in_flight

    def commit(self, plan: StepPlan, result: StepResult, *, elapsed_ns: int = 0) -> list[TokenDelta]:
        """Take in what a step computed. Rows of requests that have left or been preempted since are dropped.

        `elapsed_ns` is the time that it took: the cost model learns from it and it is divided among the rows.
        """
        self._land(plan)
        self._ledger.charge(plan.rows, elapsed_ns)
        deltas = []
        services: list[dict[str, int]] = [{} for _ in self._ranks]
        computed, sampled = [0] * len(self._ranks), [0] * len(self._ranks)
        waiting, running = Phase.WAITING, Phase.RUNNING
        for row, outcome in zip(plan.rows, result.rows, strict=True):
            request, start, tokens, samples = row
            phase = request.phase
            if phase is waiting:
                continue  # what was lost to a preemption is not service
            service = OUTPUT_SERVICE if samples else 0
            if start < request.prompt_tokens:
                service += _input_service(row)
            served, tenant = services[request.rank], request.tenant
            served[tenant] = served.get(tenant, 0) + service
            if phase is running:
                if outcome.finite:
                    computed[request.rank] += tokens
                    sampled[request.rank] += samples
                delta = self._advance(row, outcome)
                if delta is not None:
                    deltas.append(delta)
        for queue, window, served in zip(self._waiting, self._service, services, strict=True):
            queue.charge(served)
            window.add(self._now_ns, served)
        # Once a step and not once a row; requests that ended with it are out of the sums with what it brought them.
        for rank, load in enumerate(self._loads):
            load.advance(computed[rank], sampled[rank])
        return deltas

    def fail(self, plan: StepPlan, error: str, *, elapsed_ns: int = 0) -> list[TokenDelta]:
        """The step could not be computed: all requests in it end, and nothing that it wrote is reused."""
        self._land(plan)
        self._ledger.charge(plan.rows, elapsed_ns)
        return [self._fail(row.request, error) for row in plan.rows if row.request.phase is Phase.RUNNING]

    def check(self) -> None:
        """State what holds between any two calls."""
        running = list(self._running)
        waiting = [request for queue in self._waiting for request in queue]
        forks = [request for children in self._forks.values() for request in children]
        self._running.check()
        for rank in self._ranks:
            self._waiting[rank].check()
            assert all(request.rank == rank for request in self._waiting[rank]), "a request waits in another class"
            assert self._slots.held[rank] == len(self._running.ranks[rank]), "a class's slots are miscounted"
        here = [*running, *waiting, *forks]
        assert sorted(request.id for request in here) == sorted(self._requests), "a request is lost, or twice here"
        for request in running:
            assert request.phase is Phase.RUNNING
            assert request.computed < len(request.tokens), f"{request.id} has nothing to compute"
        for request in (*waiting, *forks):
            assert request.phase is Phase.WAITING
            assert request.slot is None, f"{request.id} waits with a slot"
            assert request.computed == 0, f"{request.id} waits with computed tokens"
            assert not request.block_table, f"{request.id} waits with blocks"
        for request in forks:
            assert self._awaits_prompt(request), f"{request.id} waits for a prompt that is there, or never comes"
        for request in here:
            assert len(request.tokens) < self._windows[request.rank] or request.max_tokens == 0
        slots = sorted([request.slot for request in running if request.slot is not None] + self._free_slots)
        assert slots == list(range(self._config.max_running)), "a slot is lost, or twice in use"
        assert len(self._free_slots) >= self._slots.unused(0), "the slots kept for the highest class are taken"
        assert self._cache.free_blocks >= self._cache.unused_reserve(0), "blocks kept for the highest class are taken"
        self._cache.check(here)
        for rank, load in enumerate(self._loads):
            load.check()
            assert load.load().running_requests == len(self._running.ranks[rank]), "the running load is miscounted"

    def _grow_running(self) -> int:
        """Give each running request that has filled its last block another; returns how many ranks may be admitted.

        The demand of all is known, and met, before the first row is made, so that nothing is unwound. Where it is
        not, those in the lowest class give way, and nobody of that class or below is admitted in the same step.
        """
        open_ranks = len(self._ranks)
        while True:
            growing = [
                request for request in self._running if len(request.tokens) > len(request.block_table) * BLOCK_TOKENS
            ]
            lacking = self._lacking_rank(growing)
            if lacking is None:
                break
            victim = victim_of_growth(self._running.ranks, lacking)
            open_ranks = min(open_ranks, victim.rank)
            self._preempt(victim, cause=lacking)
        for request in growing:
            grown = self._cache.grow(request, len(request.tokens))
            assert grown, "the demand for blocks was met and is not"
        return open_ranks

    def _lacking_rank(self, growing: Sequence[Request]) -> int | None:
        """The highest rank whose requests cannot all grow, once those of the ranks above have."""
        demand = [0] * len(self._ranks)
        for request in growing:
            demand[request.rank] += self._cache.blocks_needed(request, len(request.tokens))
        above = 0
        for rank in self._ranks:
            # what the ranks above take of their own reserve was never within reach
            within = sum(min(demand[other], self._cache.unused_reserve(other)) for other in range(rank))
            if demand[rank] and above - within + demand[rank] > self._cache.room(rank):
                return rank
            above += demand[rank]
        return None

    def _plan_running(self, draft: _Draft, rank: int) -> int:
        """Rows for the running requests of a class: one token each, then what more they want, in order.

        Returns how many tokens of prefill the class may still have in this step.
        """
        limit = self._prefill_limit(draft, rank)
        spare = min(draft.spare_tokens, limit)
        unspent, chunk_tokens, rows = spare, self._config.chunk_tokens, draft.rows
        for request in self._running.ranks[rank]:
            start = request.computed
            wanted = tokens = len(request.tokens) - start
            if wanted > 1:
                tokens = min(wanted, chunk_tokens, 1 + spare)
                spare -= tokens - 1
            rows.append(ScheduledRow(request, start, tokens, tokens == wanted and request.max_tokens > 0))
        draft.spare_tokens -= unspent - spare
        return limit - (unspent - spare)

    def _prefill_limit(self, draft: _Draft, rank: int) -> int:
        """The tokens of prefill that a class may have in a step, so that one above it is not kept waiting long."""
        contended = any(len(self._running.ranks[above]) or len(self._waiting[above]) for above in range(rank))
        limit = max(1, int(self._classes[rank].step_share * draft.budget_tokens)) if contended else draft.budget_tokens
        guard = draft.guard
        return limit if guard is None or rank <= guard.rank else min(limit, guard.prefill_tokens)

    def _plan_waiting(self, draft: _Draft, rank: int, limit: int) -> None:
        """Admit waiting requests of a class, in turn, while there are tokens, slots and blocks for them.

        The first that does not get in keeps out all behind it and all classes below: nobody overtakes.
        """
        while (request := self._waiting[rank].head()) is not None:
            out_of_tokens = draft.spare_tokens == 0 and self._free_slots  # without a slot, a victim brings a token
            if limit == 0 or out_of_tokens:
                draft.open_ranks = rank
                return
            parent = request.fork_of if request.fork_of is not None and _can_fork(request.fork_of, request) else None
            if not self._make_room(draft, request, self._cache.demand(request, parent)):
                draft.open_ranks = rank
                return
            if parent is not None:
                copied = self._cache.fork(parent, request)
                assert copied is not None, "there was room for a fork and is not"
                draft.copies += copied
            else:
                admitted = self._cache.admit(request)
                assert admitted, "there was room for a request and is not"
            self._start(request)
            wanted = len(request.tokens) - request.computed
            tokens = min(wanted, self._config.chunk_tokens, draft.spare_tokens, limit)
            draft.spare_tokens -= tokens
            limit -= tokens
            samples = tokens == wanted and request.max_tokens > 0
            draft.rows.append(ScheduledRow(request, request.computed, tokens, samples))

    def _make_room(self, draft: _Draft, request: Request, demand: BlockDemand) -> bool:
        """Is there a slot and are there the blocks for a waiting request, if need be after lower classes gave way?

        Nobody is preempted in vain: all that it takes is known before the first victim goes, and nobody of the
        victims' classes is admitted in the same step.
        """
        rank = request.rank
        missing_blocks = self._cache.shortage(request, demand, self._growth_blocks(rank))
        missing_slots = max(0, 1 + self._slots.unused_above(rank) - len(self._free_slots))
        if not missing_blocks and not missing_slots:
            return True
        most = self._preemption_budget.left(request.tenant, self._steps)
        if most <= 0 or not any(map(len, self._running.ranks[rank + 1 :])):
            return False
        victims = victims_for_waiting(
            self._cache,
            self._running.ranks,
            request,
            demand,
            missing_blocks=missing_blocks,
            missing_slots=missing_slots,
            most=most,
        )
        if not victims:
            return False
        self._preemption_budget.spend(request.tenant, self._steps, len(victims))
        for victim in victims:
            draft.open_ranks = min(draft.open_ranks, victim.rank)
            draft.spare_tokens += 1
            self._preempt(victim, cause=rank)
        return True

    def _growth_blocks(self, rank: int) -> int:
        """The blocks to leave when one of the rank is admitted, so that nobody gives way soon after: no thrash.

        A request gets the blocks of all its tokens at once, so it grows by one in 16 steps at most. One for each
        that runs in this class, the newcomer included, and for each above that would outgrow the reserve of its
        class. The classes below can give way. A request alone needs nothing.
        """
        above = sum(
            max(0, len(self._running.ranks[other]) - self._cache.unused_reserve(other)) for other in range(rank)
        )
        others = above + len(self._running.ranks[rank])
        return others + 1 if others else 0

    def _wait(self, request: Request) -> None:
        """Into the queue of its class; a fork whose parent has yet to compute the prompt waits beside it."""
        self._loads[request.rank].add_waiting(len(request.tokens), request.max_tokens)
        parent = request.fork_of
        if parent is not None and self._awaits_prompt(request):
            self._forks.setdefault(parent.id, []).append(request)
        else:
            self._waiting[request.rank].add(request)

    def _awaits_prompt(self, request: Request) -> bool:
        """Will the KV of the parent's prompt be there later, but is not yet? Not if it has left or never came."""
        parent = request.fork_of
        if parent is None or self._requests.get(parent.id) is not parent:
            return False
        return max(parent.computed, parent.high_water_tokens) < parent.prompt_tokens

    def _release_forks(self, parent: Request) -> None:
        """The parent's prompt is computed, or never will be."""
        for request in self._forks.pop(parent.id, ()):
            self._waiting[request.rank].add(request)

    def _start(self, request: Request) -> None:
        self._waiting[request.rank].remove(request)
        self._running.add(request)
        load = self._loads[request.rank]
        load.remove_waiting(len(request.tokens), request.max_tokens)
        load.add_running(len(request.tokens), request.computed, request.max_tokens)
        self._slots.held[request.rank] += 1
        request.phase = Phase.RUNNING
        request.slot = heappop(self._free_slots)
        request.fork_of = None  # from now on it is a request like any other, and need not keep its parent alive
        if request.preemptions == 0:
            self._cached_tokens += request.cached_tokens
            request.queue_ns = self._now_ns - request.arrived_ns

    def _preempt(self, request: Request, *, cause: int) -> None:
        """Take away a running request's slot and blocks, for the sake of a rank; it keeps its place."""
        self._running.remove(request)
        self._give_back_slot(request)
        load = self._loads[request.rank]
        load.remove_running(len(request.tokens), request.computed, request.max_tokens)
        load.add_waiting(len(request.tokens), request.max_tokens)
        if request.computed >= request.high_water_tokens:
            request.high_water_tokens = request.computed
            request.preempted_by = cause
        self._cache.release(request)
        if request.output_tokens == 0:
            request.prompt_logprobs.clear()  # they are computed anew
        request.preemptions += 1
        request.waiting_since_ns = self._now_ns
        request.phase = Phase.WAITING
        self._waiting[request.rank].add(request)
        self._preemptions += 1
        self._ledger.preempted(request.rank, cause)

    def _advance(self, row: ScheduledRow, outcome: RowResult) -> TokenDelta | None:
        """Move a request past what its row computed; None where there is nothing to hand out."""
        request = row.request
        if not outcome.finite:
            return self._fail(request, "the model's output is not finite")
        self._cache.commit(request, row.tokens)
        if self._forks and request.computed >= request.prompt_tokens:
            self._release_forks(request)
        if request.params.prompt_logprobs is not None and request.output_tokens == 0:
            if row.start == 0:
                request.prompt_logprobs.append(None)  # nothing predicts the first token
            request.prompt_logprobs += outcome.prompt_logprobs
        if not row.samples:
            prompt_only = request.max_tokens == 0 and request.computed == request.prompt_tokens
            return self._finish(request, FinishReason.LENGTH) if prompt_only else None

        assert outcome.token is not None, f"{request.id} was to get a token and did not"
        request.tokens.append(outcome.token)
        stop = stop_after_token(request, self._windows[request.rank])
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
        parent = request.fork_of
        load = self._loads[request.rank]
        if request.phase is Phase.RUNNING:
            load.remove_running(len(request.tokens), request.computed, request.max_tokens)
            load.observe_answer(request.output_tokens)
            self._running.remove(request)
            self._give_back_slot(request)
            self._cache.release(request, forget=forget)
        else:
            load.remove_waiting(len(request.tokens), request.max_tokens)
            if parent is not None and request in self._forks.get(parent.id, ()):
                self._forks[parent.id].remove(request)
            else:
                self._waiting[request.rank].remove(request)
        request.phase = Phase.FINISHED
        del self._requests[request.id]
        self._release_forks(request)

    def _give_back_slot(self, request: Request) -> None:
        assert request.slot is not None, f"{request.id} runs without a slot"
        heappush(self._free_slots, request.slot)
        self._slots.held[request.rank] -= 1
        request.slot = None

    def _land(self, plan: StepPlan) -> None:
        assert plan is self._in_flight, "this is not the plan in flight"
        self._in_flight = None


def _input_service(row: ScheduledRow) -> int:
    """What the input tokens of a row count as: those that are computed for the first time."""
    request, start, tokens, _ = row
    return INPUT_SERVICE * max(0, min(start + tokens, request.prompt_tokens) - max(start, request.high_water_tokens))


def _can_fork(parent: Request, child: Request) -> bool:
    """Is the parent's KV of the common prompt there, and does the child want no part of it computed anew?"""
    runs = parent.phase is Phase.RUNNING and parent.computed >= child.prompt_tokens
    return runs and child.params.prompt_logprobs is None


def _take_prompt_logprobs(request: Request) -> tuple[TokenLogprob | None, ...]:
    """They are delivered once, on the first delta."""
    taken = tuple(request.prompt_logprobs)
    request.prompt_logprobs.clear()
    return taken
