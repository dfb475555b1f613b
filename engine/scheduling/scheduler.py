"""The scheduler's interface: requests in, plans out; results in, deltas out."""

from collections.abc import Mapping, Sequence
from itertools import islice

from engine.config import ADAPTER_WAIT_NS, BLOCK_TOKENS, LONGEST_STEP_NS, SchedulerConfig
from engine.errors import UnservableRequest
from engine.memory.kv_cache import KVCacheManager
from engine.memory.prefix_journal import PrefixJournal
from engine.request import Phase, Request, TokenDelta
from engine.scheduling.adapter_assignment import AdapterAssignment
from engine.scheduling.block_fetches import BlockFetches
from engine.scheduling.class_activity import ClassActivity
from engine.scheduling.commit import Committer
from engine.scheduling.cost import StepCostModel, StepWork
from engine.scheduling.drafting import Draft
from engine.scheduling.fair_queue import FairQueue
from engine.scheduling.in_flight import DropReason, InFlightStep
from engine.scheduling.ledger import Ledger
from engine.scheduling.order import RankedQueue, order_key
from engine.scheduling.plan import StepPlan, StepResult
from engine.scheduling.planner import Planner
from engine.scheduling.request_table import RequestTable
from engine.scheduling.stats import SchedulerStats, class_stats, state_stats
from engine.scheduling.step_limits import StepLimits, StepSizeBackoff, StepTimeLimiter
from engine.scheduling.stopping import computed_at_end, decodes
from engine.scheduling.wait import ClassCapacity, QueueSnapshot

LOOKED_UP = 16
"""Waiting requests of each class whose cached prefixes a snapshot looks up."""


class Scheduler:
    """Owns the requests of one model from `add` to their last delta. Single-threaded.

    There is no prefill phase and no decode phase: a request has `tokens`, the KV of the first `computed` of which is
    in memory. Each step distributes a budget of tokens so that `computed` catches up (as in vLLM V1).

    Classes are ranks here, 0 the highest, with one queue of each kind per rank. `RequestTable` holds the requests and
    their states, `Planner` plans a step, `Committer` commits its result.

    In addition to the plan whose result is awaited, `async_depth` more may be in flight: 0 or 1, as planning needs all
    tokens of a request but the last; more where the running requests are divided among them, by `micro_batches`. Plans
    complete in launch order.

    It reads no clock, draws no random numbers and iterates ordered containers only: equal calls give equal plans.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCacheManager,
        max_model_len: int,
        cost_model: StepCostModel | None = None,
        *,
        longest_step_ns: int = LONGEST_STEP_NS,
        adapter_slots: int = 0,
        adapter_wait_ns: int = ADAPTER_WAIT_NS,
    ) -> None:
        """`longest_step_ns`: the maximum predicted time of a step with more than a small chunk of prefill.
        `adapter_slots`: adapters that can be resident at once. `adapter_wait_ns`: maximum wait for one."""
        classes = tuple(sorted(config.classes, key=lambda service_class: service_class.priority))
        self._config = config
        self._cache = cache
        self._classes = classes
        self._rank_of = {service_class.name: rank for rank, service_class in enumerate(classes)}
        cache.reserve(classes, config.tenant_cache_fraction)
        self._windows = [min(max_model_len, cache.capacity_tokens(rank)) for rank in range(len(classes))]
        self.cost_model = cost_model or StepCostModel()
        """The model of step times on this machine; it learns from every step."""
        self.cost_model.measured.longest_ns = longest_step_ns
        self._ledger = Ledger(self.class_names, self.cost_model)
        self._activity = ClassActivity(len(classes))
        self._requests = RequestTable(classes, config.max_running, cache, self._ledger, self._activity, adapter_slots)
        backoff = StepSizeBackoff(config.step_tokens)
        self._planner = Planner(config, classes, cache, self._requests, backoff, self.cost_model)
        self._committer = Committer(self._requests, cache, self._ledger, self._windows, backoff)
        self.adapters = AdapterAssignment(self._requests, self._planner, self._committer, adapter_wait_ns)
        """The slots of adapters, and the requests that wait for one."""
        self.fetches = None if cache.tier is None else BlockFetches(cache.tier, self._requests)
        """The second pool's copies, and the requests that wait for one. None: there is no second pool."""
        self._step_limiter = StepTimeLimiter(
            classes, config.step_tokens, longest_step_ns, self.cost_model, self._activity
        )
        self.async_depth = 0
        """Plans that may be in flight in addition to the one whose result is awaited: the executor's `async_depth`."""

    @property
    def micro_batches(self) -> int:
        """See `Executor.micro_batches`, whose value it is given."""
        return self._planner.micro_batches

    @micro_batches.setter
    def micro_batches(self, count: int) -> None:
        self._planner.micro_batches = count

    @property
    def window_tokens(self) -> int:
        """The maximum tokens of prompt and answer together in the highest class. No class allows more."""
        return self._windows[0]

    def window_tokens_of(self, service_class: str) -> int:
        """The same for one class: the model's window, or the part of the pool that is not reserved above the class."""
        return self._windows[self._rank_of[service_class]]

    @property
    def ranks(self) -> range:
        """The ranks of its classes."""
        return self._requests.ranks

    @property
    def class_ranks(self) -> Mapping[str, int]:
        """The rank of each class by its name, in this order."""
        return self._rank_of

    def rank_of(self, service_class: str) -> int:
        """The rank of a class, 0 the highest."""
        return self._rank_of[service_class]

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes, by rank."""
        return [service_class.name for service_class in self._classes]

    @property
    def running(self) -> RankedQueue:
        """The running requests, by rank."""
        return self._requests.running

    @property
    def waiting_queues(self) -> Sequence[FairQueue]:
        """The waiting requests, by rank, without forks whose parent has not computed the prompt yet."""
        return self._requests.waiting

    @property
    def context_tokens(self) -> int:
        """Tokens whose KV the running requests read in a step, in all. O(classes)."""
        return sum([sums.context_tokens for sums in self._requests.loads])

    @property
    def waiting(self) -> int:
        """Requests that wait, forks of an uncomputed prompt included; paused ones excluded."""
        return len(self._requests) - len(self._requests.running) - self._requests.paused

    @property
    def has_work(self) -> bool:
        """Whether there are requests to compute, slots of adapters to assign, or blocks still returning to the pool.
        Requests that wait for an adapter or for blocks of the second pool are not work."""
        idle = self._requests.paused + self.adapters.waiting + self._requests.awaiting_blocks
        return len(self._requests) > idle or self.adapters.changed or self._cache.returning_blocks > 0

    def record_prefixes(self, journal: PrefixJournal) -> list[bytes]:
        """As `KVCacheManager.record_prefixes`."""
        return self._cache.record_prefixes(journal)

    @property
    def returning_blocks(self) -> int:
        """KV blocks of finished or preempted requests that are not free yet."""
        return self._cache.returning_blocks

    @property
    def in_flight(self) -> int:
        """Plans that are neither committed nor failed."""
        return len(self._requests.in_flight)

    def add(self, request: Request, now_ns: int = 0) -> None:
        """Queue a new request. A fork is added after the request that it forks.

        Raises:
            UnservableRequest: its class is not one of the configured ones, the prompt is empty, or it leaves no room
                for a single token where one is wanted; or it has an adapter, and the model takes none.
        """
        assert request.phase is Phase.WAITING, f"{request.id} is not new"
        assert request.id not in self._requests, f"{request.id} is already here"
        assert request.fork_of is None or request.output_tokens == 0, f"{request.id} forks with tokens of an answer"
        assert request.fork_of is None or order_key(request.fork_of) < order_key(request)
        rank = self._rank_of.get(request.service_class.name)
        if rank is None:
            raise UnservableRequest(f"there is no service class {request.service_class.name!r} here")
        if not request.tokens:
            raise UnservableRequest("the prompt has no tokens")
        if request.prompt_tokens + min(request.max_tokens, 1) > self._windows[rank]:
            raise UnservableRequest(self._too_long(request.prompt_tokens, rank))
        if request.adapter is not None and not self.adapters.slots:
            raise UnservableRequest("the model takes no adapters")
        request.rank = rank
        request.service_class = self._classes[rank]
        request.computed_at_end = computed_at_end(request, self._windows[rank])
        request.arrived_ns = request.waiting_since_ns = now_ns
        self._activity.record_arrival(rank, now_ns)
        self._requests.add(request)

    def _too_long(self, prompt_tokens: int, rank: int) -> str:
        message = f"the prompt has {prompt_tokens} tokens; prompt and answer can have {self._windows[rank]}"
        if self._windows[rank] == self._windows[0]:
            return message
        total, window = self._cache.capacity_tokens(), self._windows[rank]
        name = self._classes[rank].name
        return f"{message} in class {name}: KV memory for {total} tokens, less {total - window} reserved above it"

    def waits(self, request_id: str) -> bool:
        """Whether the request is here and waits to run."""
        request = self._requests.get(request_id)
        return request is not None and request.phase is Phase.WAITING

    def abort(self, request_id: str, now_ns: int = 0) -> bool:
        """End a request at once, in any state. Its blocks are free on return, or, for a long request, within the next
        steps: see `KVCacheManager`. False: it is not here."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._requests.remove(request, DropReason.ABORTED, now_ns=now_ns)
        return True

    def pause(self, request_id: str, now_ns: int = 0) -> bool:
        """Stop computing a request and free its slot and its blocks until `resume`, because its client does not read.
        It keeps its place and its tokens. A pause does not count as a preemption. False: it is not here, or is paused
        already."""
        request = self._requests.get(request_id)
        if request is None or request.phase is Phase.PAUSED:
            return False
        self._requests.pause(request, now_ns)
        return True

    def resume(self, request_id: str, now_ns: int = 0) -> bool:
        """Queue a paused request again. False: it is not here, or is not paused."""
        request = self._requests.get(request_id)
        if request is None or request.phase is not Phase.PAUSED:
            return False
        self._requests.resume(request, now_ns)
        return True

    def preempt(self, request_id: str) -> bool:
        """Free a running request's blocks and slot; it keeps its place and its tokens. False: it does not run."""
        request = self._requests.get(request_id)
        if request is None or request.phase is not Phase.RUNNING:
            return False
        self._requests.preempt(request, cause=request.rank, drop_reason=DropReason.PAUSED)
        return True

    def step_limits(self, now_ns: int) -> StepLimits:
        """The limits of the next step, for the classes' latency targets and the watchdog. O(classes + prompts that are
        being computed)."""
        running = len(self._requests.running)
        decoding = [any(map(decodes, queue)) for queue in self._requests.running.ranks]
        decode = StepWork(running, self.context_tokens, 0, running)
        return self._step_limiter.limits(now_ns, decode, decoding, self.micro_batches)

    def schedule(
        self,
        now_ns: int = 0,
        *,
        budget: int | None = None,
        limits: StepLimits | None = None,
        draft: Draft | None = None,
    ) -> StepPlan | None:
        """The next step; None where there is nothing to compute, or not before a step in flight is complete.

        `commit`, `fail` or `give_back` it before the next call; with `async_depth`, before the call after that.

        `budget`: maximum tokens of this step; each running request gets one in any case. `limits`: bounds on prefill.
        `draft`: proposes next tokens of running requests when all rows are planned: see `drafting`.
        """
        assert self.in_flight <= self.async_depth, "the last plan is neither committed nor failed"
        self._requests.now_ns = now_ns
        plan = self._planner.plan(budget, limits, draft)
        if plan is not None:
            self._requests.in_flight.launch(plan)
            if self._cache.tier is not None:
                self._cache.tier.record_launch()
        return plan

    def commit(self, plan: StepPlan, result: StepResult, *, elapsed_ns: int = 0) -> list[TokenDelta]:
        """Commit the result of a step. Rows of requests that left or were preempted after the launch are dropped.

        `elapsed_ns`: the step's time, from its launch or the end of the previous step, whichever is later. The cost
        model learns from it, and it is divided among the rows.
        """
        return self._committer.commit(self._complete(plan), result, elapsed_ns)

    def fail(self, plan: StepPlan, error: str, *, elapsed_ns: int = 0) -> list[TokenDelta]:
        """End all requests of a step that failed with `error`. The KV that it wrote is not reused."""
        return self._committer.fail(self._complete(plan), error, elapsed_ns)

    def give_back(self, plan: StepPlan, error: str, *, elapsed_ns: int = 0) -> list[TokenDelta]:
        """Undo a step for which the device had no memory; its tokens are planned again in smaller steps. Where no
        smaller step exists, its largest request ends with `error`."""
        return self._committer.give_back(self._complete(plan), error, elapsed_ns)

    def _complete(self, plan: StepPlan) -> InFlightStep:
        if self._cache.tier is not None:
            self._cache.tier.record_completion()
        return self._requests.in_flight.complete(plan)

    def charge_drafting(self, requests: Sequence[Request], elapsed_ns: int) -> None:
        """Divide the time of drafting among the requests that it was for."""
        self._ledger.charge_drafting(requests, elapsed_ns)

    def snapshot(self) -> QueueSnapshot:
        """The load of each class, for predicting waits: a function of the queues and the prefix cache as they are.

        What the cache has is looked up for at most `LOOKED_UP` waiting requests of each class, in the order of the
        queue; for the others, for those that wait for an adapter, and for forks it counts as nothing. O(classes) for
        any number of requests: a lookup takes microseconds, as the hashes are there and the hits are kept.
        """
        prefill_tokens = self._config.step_tokens - len(self._requests.running)
        capacities = tuple(
            ClassCapacity(
                max(self._requests.available_slots(rank), 0),
                max(self._cache.available_blocks(rank), 0) // self._cache.groups,
                min(self._planner.mean_prefill_limits[rank], prefill_tokens),
                sum(self._planner.mean_running[:rank]),
            )
            for rank in self._requests.ranks
        )
        held_blocks = (self._cache.num_blocks - self._cache.free_blocks) // self._cache.groups
        loads = [sums.load(self._cached_tokens(rank)) for rank, sums in enumerate(self._requests.loads)]
        return QueueSnapshot(tuple(loads), capacities, held_blocks)

    def _cached_tokens(self, rank: int) -> int:
        waiting = islice(self._requests.waiting[rank], LOOKED_UP)
        return sum([len(self._cache.match(request)) for request in waiting]) * BLOCK_TOKENS

    def stats(self, now_ns: int | None = None) -> SchedulerStats:
        """The scheduler's metrics. `now_ns`: None for the time of the last step. Thread-safe. O(classes)."""
        now_ns = self._requests.now_ns if now_ns is None else now_ns
        running = len(self._requests.running)
        limited = self._planner.itl_limited_steps
        classes = class_stats(self._classes, self._requests, self._cache, self._ledger, limited, now_ns)
        return SchedulerStats(
            running=running,
            waiting=self.waiting,
            paused=self._requests.paused,
            free_blocks=self._cache.free_blocks,
            num_blocks=self._cache.num_blocks,
            steps_total=self._planner.steps_total,
            scheduled_tokens_total=self._planner.scheduled_tokens_total,
            cached_tokens_total=self._requests.cached_tokens_total,
            preemptions_total=sum(stats.preemptions_suffered for stats in classes),
            pauses_total=self._requests.pauses_total,
            paused_ns_total=self._requests.paused_ns_total,
            failures_total=self._committer.failures_total,
            wasted_rows_total=sum(stats.wasted_rows for stats in classes),
            classes=classes,
            states=None if self._cache.states is None else state_stats(self._cache.states),
            adapters=self.adapters.stats() if self.adapters.slots else None,
            tier=None if self.fetches is None else self.fetches.stats(),
        )

    def check(self) -> None:
        """Assert the invariants that hold between any two calls."""
        self._requests.check()
        for request in self._requests:
            assert len(request.tokens) < self._windows[request.rank] or request.max_tokens == 0
        assert self._cache.free_blocks >= self._cache.unused_reserve(0), "blocks kept for the highest class are taken"
