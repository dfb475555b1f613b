"""What the rest of the engine sees of scheduling: requests go in, plans come out, results go in, deltas come out."""

from collections.abc import Sequence

from engine.config import LONGEST_STEP_NS, SchedulerConfig
from engine.errors import UnservableRequest
from engine.memory.kv_cache import KVCacheManager
from engine.request import Phase, Request, TokenDelta
from engine.scheduling.commit import Committer
from engine.scheduling.cost import StepCostModel, StepWork
from engine.scheduling.drafting import Draft
from engine.scheduling.fair_queue import FairQueue
from engine.scheduling.flight import Fate
from engine.scheduling.guard import StepGuard, TargetWatch
from engine.scheduling.ledger import Ledger
from engine.scheduling.order import RankedQueue, order_key
from engine.scheduling.plan import StepPlan, StepResult
from engine.scheduling.planner import Planner
from engine.scheduling.presence import Presence
from engine.scheduling.roster import Roster
from engine.scheduling.shortage import StepLimit
from engine.scheduling.stats import SchedulerStats, class_stats
from engine.scheduling.stopping import computed_at_end, decodes
from engine.scheduling.wait import ClassRoom, QueueSnapshot


class Scheduler:
    """Owns the requests of one model from `add` to their last delta. Single-threaded.

    There is no prefill phase and no decode phase: a request has `tokens`, of which the KV of the first `computed`
    is there, and a step hands out a budget of tokens so that the second number catches up with the first.

    Classes are ranks here, 0 the highest; there is a queue of each kind for each. `Roster` holds the requests and
    moves them, `Planner` makes a step's plan of them, `Committer` takes in what came of it.

    Beyond the plan whose result is waited for, `async_depth` more may be in flight: none, or one, as a plan has to know
    all tokens of a request but the last. They land in the order of their launch.

    It reads no clock, draws no random number and iterates ordered containers only: equal calls give equal plans.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCacheManager,
        max_model_len: int,
        cost_model: StepCostModel | None = None,
        *,
        longest_step_ns: int = LONGEST_STEP_NS,
    ) -> None:
        """`longest_step_ns`: no step with more than a small chunk of prefill is predicted to take longer."""
        classes = tuple(sorted(config.classes, key=lambda each: each.priority))
        self._config = config
        self._cache = cache
        self._classes = classes
        self._rank_of = {each.name: rank for rank, each in enumerate(classes)}
        cache.reserve(classes, config.tenant_cache_fraction)
        self._windows = [min(max_model_len, cache.capacity_tokens(rank)) for rank in range(len(classes))]
        self.cost_model = cost_model or StepCostModel()
        """What steps cost on this machine, learnt from them."""
        self.cost_model.measured.longest_ns = longest_step_ns
        self._ledger = Ledger([each.name for each in classes], self.cost_model)
        self._presence = Presence(len(classes))
        self._roster = Roster(classes, config.max_running, cache, self._ledger, self._presence)
        limit = StepLimit(config.step_tokens)
        self._planner = Planner(config, classes, cache, self._roster, limit, self.cost_model)
        self._committer = Committer(self._roster, cache, self._ledger, self._windows, limit)
        self._targets = TargetWatch(classes, config.step_tokens, longest_step_ns, self.cost_model, self._presence)
        self.async_depth = 0
        """How many plans may be in flight beside the one whose result is waited for: as many as the executor takes."""

    @property
    def window_tokens(self) -> int:
        """The most tokens that prompt and answer may have together in the highest class, and so in any."""
        return self._windows[0]

    def window_tokens_of(self, service_class: str) -> int:
        """The same for one class: the model's window, or what of the pool is not reserved above it."""
        return self._windows[self._rank_of[service_class]]

    @property
    def ranks(self) -> range:
        """Of its classes."""
        return self._roster.ranks

    def rank_of(self, service_class: str) -> int:
        """A class's place among the classes, 0 the highest."""
        return self._rank_of[service_class]

    @property
    def class_names(self) -> Sequence[str]:
        """By rank."""
        return [each.name for each in self._classes]

    @property
    def running(self) -> RankedQueue:
        """Those that run, by rank."""
        return self._roster.running

    @property
    def waiting_queues(self) -> Sequence[FairQueue]:
        """Those that wait, by rank, beside forks whose parent has yet to compute the prompt."""
        return self._roster.waiting

    @property
    def context_tokens(self) -> int:
        """Those whose KV all that run read in a step. O(classes)."""
        return sum([sums.context_tokens for sums in self._roster.loads])

    @property
    def waiting(self) -> int:
        """How many requests want to run and do not."""
        return len(self._roster) - len(self._roster.running) - self._roster.paused

    @property
    def has_work(self) -> bool:
        """Requests to compute, or blocks that are still to be taken back from those that have left."""
        return len(self._roster) > self._roster.paused or self._cache.returning_blocks > 0

    @property
    def returning_blocks(self) -> int:
        """KV blocks of requests that have left, or gave way, which are not free yet."""
        return self._cache.returning_blocks

    @property
    def in_flight(self) -> int:
        """How many plans are neither committed nor failed."""
        return len(self._roster.flights)

    def add(self, request: Request, now_ns: int = 0) -> None:
        """Let a new request wait for its turn. A fork comes after the request that it forks.

        Raises:
            UnservableRequest: its class is not one of the configured ones, the prompt is empty, or it leaves no room
                for a single token where one is wanted.
        """
        assert request.phase is Phase.WAITING, f"{request.id} is not new"
        assert request.id not in self._roster, f"{request.id} is already here"
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
        request.computed_at_end = computed_at_end(request, self._windows[rank])
        request.arrived_ns = request.waiting_since_ns = now_ns
        self._presence.note_arrival(rank, now_ns)
        self._roster.add(request)

    def _too_long(self, prompt_tokens: int, rank: int) -> str:
        message = f"the prompt has {prompt_tokens} tokens; prompt and answer can have {self._windows[rank]}"
        if self._windows[rank] == self._windows[0]:
            return message
        total, window = self._cache.capacity_tokens(), self._windows[rank]
        name = self._classes[rank].name
        return f"{message} in class {name}: KV memory for {total} tokens, less {total - window} reserved above it"

    def waits(self, request_id: str) -> bool:
        """Is it here, and wants to run and does not?"""
        request = self._roster.get(request_id)
        return request is not None and request.phase is Phase.WAITING

    def abort(self, request_id: str, now_ns: int = 0) -> bool:
        """End a request at once, wherever it stands. Its blocks are free on return, or, of a long
        request, in one of the next steps: see `KVCacheManager`. False: it is not here."""
        request = self._roster.get(request_id)
        if request is None:
            return False
        self._roster.remove(request, Fate.ABORTED, now_ns=now_ns)
        return True

    def pause(self, request_id: str, now_ns: int = 0) -> bool:
        """Nobody reads a request: compute nothing more of it, and let others have its slot and its blocks, until it is
        resumed. It keeps its place and its tokens. False: it is not here, or is paused."""
        request = self._roster.get(request_id)
        if request is None or request.phase is Phase.PAUSED:
            return False
        self._roster.pause(request, now_ns)
        return True

    def resume(self, request_id: str, now_ns: int = 0) -> bool:
        """A request that was paused is read again. False: it is not here, or is not paused."""
        request = self._roster.get(request_id)
        if request is None or request.phase is not Phase.PAUSED:
            return False
        self._roster.resume(request, now_ns)
        return True

    def preempt(self, request_id: str) -> bool:
        """Take a running request's blocks and slot away; it keeps its place and its tokens. False: not running."""
        request = self._roster.get(request_id)
        if request is None or request.phase is not Phase.RUNNING:
            return False
        self._roster.preempt(request, cause=request.rank, fate=Fate.PAUSED)
        return True

    def step_guard(self, now_ns: int) -> StepGuard:
        """What keeps the next step short: for the classes' targets, and for the watchdog. O(classes + prompts that are
        being computed)."""
        running = len(self._roster.running)
        decoding = [any(map(decodes, each)) for each in self._roster.running.ranks]
        return self._targets.guard(now_ns, StepWork(running, self.context_tokens, 0, running), decoding)

    def schedule(
        self,
        now_ns: int = 0,
        *,
        budget: int | None = None,
        guard: StepGuard | None = None,
        draft: Draft | None = None,
    ) -> StepPlan | None:
        """The next step, or None where there is nothing to compute, or not before a step in flight has landed.

        `commit`, `fail` or `give_back` it before the next; with `async_depth` 1, before the one after that.

        `budget` lowers the tokens of this step; each running request gets one in any case. `guard` bounds prefill.
        `draft` guesses what comes next in running requests, when all rows are made: see `drafting`.
        """
        assert self.in_flight <= self.async_depth, "the last plan is neither committed nor failed"
        self._roster.now_ns = now_ns
        plan = self._planner.plan(budget, guard, draft)
        if plan is not None:
            self._roster.flights.launch(plan)
        return plan

    def commit(self, plan: StepPlan, result: StepResult, *, elapsed_ns: int = 0) -> list[TokenDelta]:
        """Take in what a step computed. Rows of requests that have left or been preempted since are dropped.

        `elapsed_ns` is the time that it took, from its launch or the end of the step before it, whichever is later: the
        cost model learns from it and it is divided among the rows.
        """
        return self._committer.commit(self._roster.flights.land(plan), result, elapsed_ns)

    def fail(self, plan: StepPlan, error: str, *, elapsed_ns: int = 0) -> list[TokenDelta]:
        """The step could not be computed: all requests in it end, and nothing that it wrote is reused."""
        return self._committer.fail(self._roster.flights.land(plan), error, elapsed_ns)

    def give_back(self, plan: StepPlan, error: str, *, elapsed_ns: int = 0) -> list[TokenDelta]:
        """There was no room on the device for the step: nothing came of it, and what it was for is planned again, in
        smaller steps. Where it could not be smaller, its largest request ends with the error."""
        return self._committer.give_back(self._roster.flights.land(plan), error, elapsed_ns)

    def charge_drafting(self, requests: Sequence[Request], elapsed_ns: int) -> None:
        """Divide the time that it took to draft for running requests among them."""
        self._ledger.charge_drafting(requests, elapsed_ns)

    def snapshot(self) -> QueueSnapshot:
        """The load of each class, for predicting waits. O(classes)."""
        beside_running = self._config.step_tokens - len(self._roster.running)
        rooms = tuple(
            ClassRoom(
                max(self._roster.slot_room(rank), 0),
                max(self._cache.room(rank), 0),
                min(self._planner.mean_prefill_limits[rank], beside_running),
                sum(self._planner.mean_running[:rank]),
            )
            for rank in self._roster.ranks
        )
        held_blocks = self._cache.num_blocks - self._cache.free_blocks
        return QueueSnapshot(tuple(sums.load() for sums in self._roster.loads), rooms, held_blocks)

    def stats(self, now_ns: int | None = None) -> SchedulerStats:
        """May be called while another thread steps. `now_ns`: None for the time of the last step.

        O(classes).
        """
        now_ns = self._roster.now_ns if now_ns is None else now_ns
        running = len(self._roster.running)
        limited = self._planner.itl_limited_steps
        classes = class_stats(self._classes, self._roster, self._cache, self._ledger, limited, now_ns)
        return SchedulerStats(
            running=running,
            waiting=self.waiting,
            paused=self._roster.paused,
            free_blocks=self._cache.free_blocks,
            num_blocks=self._cache.num_blocks,
            steps_total=self._planner.steps_total,
            scheduled_tokens_total=self._planner.scheduled_tokens_total,
            cached_tokens_total=self._roster.cached_tokens_total,
            preemptions_total=sum(each.preemptions_suffered for each in classes),
            pauses_total=self._roster.pauses_total,
            paused_ns_total=self._roster.paused_ns_total,
            failures_total=self._committer.failures_total,
            wasted_rows_total=sum(each.wasted_rows for each in classes),
            classes=classes,
        )

    def check(self) -> None:
        """State what holds between any two calls."""
        self._roster.check()
        for request in self._roster:
            assert len(request.tokens) < self._windows[request.rank] or request.max_tokens == 0
        assert self._cache.free_blocks >= self._cache.unused_reserve(0), "blocks kept for the highest class are taken"
