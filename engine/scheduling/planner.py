"""Plans a step class by class: rows for the running requests, then for those that are admitted."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.config import SchedulerConfig
from engine.memory.kv_cache import BlockCopy, KVCacheManager
from engine.request import Phase, Request, ServiceClass
from engine.scheduling.admission import Admission, AdmissionRefusal, BudgetBlocked
from engine.scheduling.allowance import StepAllowance
from engine.scheduling.cost import StepCostModel, StepWork
from engine.scheduling.decode_blocks import allocate_decode_blocks
from engine.scheduling.drafting import Draft, draft_capacity, with_drafts
from engine.scheduling.micro_batches import held_back
from engine.scheduling.plan import ScheduledRow, StepPlan, scheduled_row
from engine.scheduling.request_table import RequestTable
from engine.scheduling.step_limits import StepLimits, StepSizeBackoff
from engine.scheduling.stopping import ends_in_flight

MEAN_STEPS = 256
"""Steps in the moving averages that waits are predicted from."""

MAX_BUDGET_BLOCKED = 8
"""Budget-blocked tenants of a class that are overtaken in one step. Bounded, as each costs a search for victims."""


@dataclass(slots=True)
class _Sketch:
    """A step that is being planned.

    `budget_tokens`: all tokens of the step; `spare_tokens`: those not planned yet.
    `open_ranks`: the number of classes, from the highest, that may still admit requests.
    `yielding`: the ranks that are left out.
    `rank_tokens`: by rank, for the classes planned so far, how many of `spare_tokens` the class may still use.
    `held_back`: running requests without a row: see `micro_batches`.
    """

    budget_tokens: int
    spare_tokens: int
    open_ranks: int
    limits: StepLimits | None
    allowance: StepAllowance | None
    yielding: frozenset[int]
    rank_tokens: list[int] = field(default_factory=list)
    rows: list[ScheduledRow] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    blocked: BudgetBlocked = field(default_factory=BudgetBlocked)
    held_back: frozenset[Request] = frozenset()


class Planner:
    """Plans from the highest class to the lowest: a class is served, and preempts requests of the classes below, before
    any row of those classes is planned.

    A step costs O(running requests + blocks allocated and returned); `KVCacheManager` bounds those blocks. A request
    that is refused in every step costs O(running requests + changes of its cached prefix) per step.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        classes: Sequence[ServiceClass],
        cache: KVCacheManager,
        requests: RequestTable,
        backoff: StepSizeBackoff,
        cost_model: StepCostModel,
    ) -> None:
        self._config = config
        self._cost_model = cost_model
        self._classes = classes
        self._yields_below = [any(each.yields for each in classes[rank + 1 :]) for rank in range(len(classes))]
        self._cache = cache
        self._requests = requests
        self._backoff = backoff
        self._admission = Admission(config, cache, requests)
        self.preemption_budget = self._admission.preemption_budget
        self.micro_batches = 1
        """See `Executor.micro_batches`."""
        self.steps_total = 0
        self.scheduled_tokens_total = 0
        self.mean_prefill_limits = [float(config.step_tokens) for _ in classes]
        """By rank: tokens of prefill that recent steps had available, a moving average."""
        self.mean_running = [0.0 for _ in classes]
        """By rank: running requests in recent steps, a moving average."""
        self.itl_limited_steps = [0 for _ in classes]
        """By rank: steps whose prefill was cut for the class's target for the time between tokens."""

    def plan(self, budget: int | None, limits: StepLimits | None, draft: Draft | None) -> StepPlan | None:
        """The next step, with all its blocks allocated.

        None: there is nothing to compute, or not before the oldest step in flight is complete.

        `budget`: the maximum number of tokens; each running request gets one in any case, and one more is added.
        After a shortage of device memory the maximum is lower, but never below one per running request.
        `draft`: called with the remaining capacity when all other rows are planned; its drafts extend decode rows.
        With `micro_batches`, a step with `draft` has rows of all running requests, and none follows its drafts.
        """
        follows_drafts = self._requests.in_flight.have_drafts
        if follows_drafts and not self._may_follow_drafts:
            return None  # the number of accepted drafts is not known yet
        self._cache.begin_step()
        open_ranks = allocate_decode_blocks(self._requests, self._cache, ahead=self.micro_batches == 1)
        if open_ranks is None:
            return None
        allocating = [request for request in self._requests.running if request.is_allocating]
        for request in allocating:
            self._requests.allocate_more(request)
            if not request.block_table:  # it waits again
                open_ranks = min(open_ranks, request.rank)
        yielding = self._yielding_ranks()
        divides = self.micro_batches > 1 and draft is None
        sketch = self._begin(budget, limits, open_ranks, yielding, divides=divides)
        for rank in self._requests.ranks:
            if rank in yielding:
                sketch.rank_tokens.append(0)
                limit = self.mean_prefill_limits[rank]
                self.mean_prefill_limits[rank] = max(limit - limit / MEAN_STEPS, 1.0)
                continue
            sketch.rank_tokens.append(self._plan_running(sketch, rank))
            if rank < sketch.open_ranks and self._requests.waiting[rank]:
                self._plan_waiting(sketch, rank)
        if yielding and not sketch.rows:  # the prompts above cannot be computed yet
            sketch = self._begin(budget, limits, open_ranks, frozenset(), divides=divides)
            sketch.rank_tokens += [self._plan_running(sketch, rank) for rank in self._requests.ranks]
        if not sketch.rows:
            return None
        allowance = sketch.allowance
        draft_tokens = self._plan_drafts(sketch, draft) if draft is not None and not follows_drafts else 0
        if allowance is not None and allowance.shortened and limits is not None and limits.itl_rank is not None:
            self.itl_limited_steps[limits.itl_rank] += 1
        self.steps_total += 1
        self.scheduled_tokens_total += sketch.budget_tokens - sketch.spare_tokens
        states = self._cache.states
        moves = None if states is None else states.plan(sketch.rows, save=self._cache.saves_states)
        return StepPlan(self.steps_total, tuple(sketch.rows), tuple(sketch.copies), draft_tokens, moves)

    def _yielding_ranks(self) -> frozenset[int]:
        """The classes that are left out of this step: a class above has a prompt that is computed or waits."""
        yielding, has_prompts = set(), False
        for rank in self._requests.ranks:
            if self._classes[rank].yields and has_prompts:
                yielding.add(rank)
            elif not has_prompts and self._yields_below[rank]:
                running = self._requests.running.ranks[rank]
                computing = any(len(request.tokens) - request.scheduled > 1 for request in running)
                has_prompts = computing or len(self._requests.waiting[rank]) > 0
        return frozenset(yielding)

    def _begin(
        self,
        budget: int | None,
        limits: StepLimits | None,
        open_ranks: int,
        yielding: frozenset[int],
        *,
        divides: bool,
    ) -> _Sketch:
        """An empty step with room for a token of each running request, without the classes that are `yielding`.
        `divides`: the requests in decode are divided among `micro_batches` steps."""
        ready = [
            request for request in self._requests.running if not request.is_allocating and request.rank not in yielding
        ]
        starts = [request.scheduled for request in ready]
        if self._requests.in_flight:
            starts = [request.scheduled for request in ready if not ends_in_flight(request)]
        held = frozenset[Request]()
        if divides:
            held = held_back(ready, self.micro_batches)
            starts = [request.scheduled for request in ready if not (request in held or ends_in_flight(request))]
        running = len(starts)
        max_tokens = self._config.step_tokens
        budget_tokens = max_tokens if budget is None else min(max(budget, running + 1), max_tokens)
        budget_tokens = min(budget_tokens, max(self._backoff.tokens, running))
        allowance = None
        if limits is not None and limits.longest_ns is not None:
            decode = StepWork(running, sum(starts) + running, 0, running)
            allowance = StepAllowance(self._cost_model, limits, decode, max(budget_tokens - running, 1))
        return _Sketch(budget_tokens, budget_tokens - running, open_ranks, limits, allowance, yielding, held_back=held)

    def _plan_running(self, sketch: _Sketch, rank: int) -> int:
        """Plan rows for the running requests of a class, in order: one token each, and more where more are pending.

        Pending tokens are neither computed nor in flight. With drafts in flight `scheduled` is an upper bound, past the
        known tokens: see `drafting.can_be_followed`. A request without pending tokens has its next one sampled by a
        step in flight: the row computes that token, unless the request ends with it.

        Returns the tokens of prefill that the class may still use in this step.
        """
        limit, allowance = self._prefill_limit(sketch, rank), sketch.allowance
        running = len(self._requests.running.ranks[rank])
        fits = limit if allowance is None else min(limit, allowance.nominal_tokens)
        self.mean_prefill_limits[rank] += (fits - self.mean_prefill_limits[rank]) / MEAN_STEPS
        self.mean_running[rank] += (running - self.mean_running[rank]) / MEAN_STEPS
        spare = min(sketch.spare_tokens, limit)
        unspent, chunk_tokens, rows = spare, self._config.chunk_tokens, sketch.rows
        for request in self._requests.running.ranks[rank]:
            if request.is_allocating or request in sketch.held_back:
                continue
            start = request.scheduled
            wanted = len(request.tokens) - start
            if wanted == 1 or (wanted <= 0 and not ends_in_flight(request)):
                request.scheduled = start + 1
                rows.append(scheduled_row((request, start, 1, request.max_tokens > 0, ())))
                continue
            if wanted <= 0:
                continue
            tokens = min(wanted, chunk_tokens, 1 + spare)
            if allowance is not None:
                tokens = allowance.extend(start, tokens)
            spare -= tokens - 1
            request.scheduled = start + tokens
            samples = tokens == wanted and request.max_tokens > 0
            rows.append(scheduled_row((request, start, tokens, samples, ())))
        sketch.spare_tokens -= unspent - spare
        return limit - (unspent - spare)

    @property
    def _may_follow_drafts(self) -> bool:
        """Whether a step may be planned on drafts in flight. Not of models with recurrent states, which do not go back,
        nor with KV in groups, whose windows follow the computed tokens, nor in a pipeline, where a row does not begin
        before its tokens are known."""
        plain = self._cache.states is None and self._cache.groups == 1 and self.micro_batches == 1
        return plain and self._requests.in_flight.can_be_followed

    def _prefill_limit(self, sketch: _Sketch, rank: int) -> int:
        """Tokens of prefill that a class may have in a step, limited for the latency of the classes above."""
        running, waiting = self._requests.running.ranks, self._requests.waiting
        contended = rank and any(len(running[above]) or len(waiting[above]) for above in range(rank))
        limit = (
            max(1, int(self._classes[rank].step_share * sketch.budget_tokens)) if contended else sketch.budget_tokens
        )
        limits = sketch.limits
        if limits is None:
            return limit
        if self._classes[rank].yields and limits.yielding_tokens is not None:
            limit = min(limit, limits.yielding_tokens)
        return limit if rank <= limits.rank else min(limit, limits.prefill_tokens)

    def _plan_waiting(self, sketch: _Sketch, rank: int) -> None:
        """Admit waiting requests of a class, in order, while there are tokens, slots and blocks for them.

        The first request that is refused blocks all behind it and all classes below. The exception is a request whose
        tenant has no preemption budget left: see `admission`. A request that overtakes it is the last admission of the
        step, as its victims may have freed enough for the blocked one.
        """
        queue, blocked = self._requests.waiting[rank], sketch.blocked
        blocked.tenants.clear()
        while (request := queue.head_except(blocked.tenants)) is not None:
            # Without a slot, a victim brings one, unless it has no row in this step.
            brings_none = self._requests.slots.free or sketch.held_back or sketch.yielding
            out_of_tokens = sketch.spare_tokens == 0 and brings_none
            out_of_time = sketch.allowance is not None and not sketch.allowance.admits(request)
            full = sketch.rank_tokens[rank] == 0 or out_of_tokens or out_of_time or not self._cache.may_admit
            spare_tokens = sketch.spare_tokens
            refusal = AdmissionRefusal.CAPACITY if full else self._admit(sketch, request)
            if refusal is AdmissionRefusal.BUDGET and len(blocked.tenants) < MAX_BUDGET_BLOCKED:
                continue
            if refusal is AdmissionRefusal.FETCHING:
                continue  # it is not in the queue any more
            if refusal is None and not request.is_allocating:  # else it gets its blocks in the next steps
                self._plan_admitted(sketch, request)
            # Tokens freed by preemption go to the preempting request only: rows planned before it could not use them,
            # so rows of lower classes must not.
            sketch.spare_tokens = min(sketch.spare_tokens, spare_tokens)
            if refusal is not None or blocked.slots:
                sketch.open_ranks = rank
                return

    def _plan_admitted(self, sketch: _Sketch, request: Request) -> None:
        """Plan the first row of an admitted request."""
        wanted = len(request.tokens) - request.computed
        tokens = min(wanted, self._config.chunk_tokens, sketch.spare_tokens, sketch.rank_tokens[request.rank])
        if sketch.allowance is not None:
            tokens = sketch.allowance.begin(request, tokens)
        sketch.spare_tokens -= tokens
        sketch.rank_tokens[request.rank] -= tokens
        request.scheduled += tokens
        samples = tokens == wanted and request.max_tokens > 0
        sketch.rows.append(scheduled_row((request, request.computed, tokens, samples, ())))

    def _plan_drafts(self, sketch: _Sketch, draft: Draft) -> int:
        """Add drafts to decode rows, from the tokens and blocks that are left over. Returns the number of drafts.

        Drafts count against the limits of prefill, as they lengthen the step for all requests in it.
        """
        allowance = sketch.allowance
        spare = sketch.spare_tokens
        if allowance is not None:
            spare = min(spare, allowance.open_to_drafts())
        capacity = draft_capacity(sketch.rows, spare, sketch.rank_tokens, self._config.chunk_tokens)
        if not capacity.useful:
            return 0
        drafts, total = draft(capacity), 0
        for index, row in enumerate(sketch.rows):
            request = row.request
            if request not in drafts:
                continue
            max_drafts = min(sketch.spare_tokens, sketch.rank_tokens[request.rank], self._config.chunk_tokens - 1)
            max_drafts = min(max_drafts, len(drafts[request]))
            if allowance is not None and max_drafts > 0:
                max_drafts = allowance.extend(row.start, 1 + max_drafts) - 1
            drafted = with_drafts(row, drafts[request][: max(max_drafts, 0)], self._cache)
            count = len(drafted.drafts)
            sketch.rows[index] = drafted
            sketch.spare_tokens -= count
            sketch.rank_tokens[request.rank] -= count
            total += count
        return total

    def _admit(self, sketch: _Sketch, request: Request) -> AdmissionRefusal | None:
        """Give a waiting request a slot and blocks. Its victims' classes admit no request in the same step."""
        parent = request.fork_of
        if parent is not None and not (self._cache.forks and _can_fork(parent, request)):
            parent = None  # the choice begins with prefix hits
        demand = self._cache.demand(request, parent)
        if parent is None and self._admission.fetch(request, demand, sketch.blocked):
            return AdmissionRefusal.FETCHING
        victims = self._admission.make_room(request, demand, self.steps_total, sketch.blocked)
        if isinstance(victims, AdmissionRefusal):
            if victims is AdmissionRefusal.BUDGET:
                self._admission.reserve(request, demand, sketch.blocked)
            return victims
        for victim in victims:
            sketch.open_ranks = min(sketch.open_ranks, victim.rank)
            # Else it has no token in this step.
            sketch.spare_tokens += victim not in sketch.held_back and victim.rank not in sketch.yielding
        if parent is not None:
            sketch.copies += self._cache.fork(parent, request, demand)
        else:
            self._cache.admit(request, demand)
        self._requests.start(request)
        return None


def _can_fork(parent: Request, child: Request) -> bool:
    """Whether the parent has computed the KV of the common prompt, and the child does not need to compute it itself."""
    runs = parent.phase is Phase.RUNNING and parent.computed >= child.prompt_tokens
    return runs and not child.needs_whole_prompt
