"""Makes the plan of a step: rows for what runs, then for those that are admitted, class by class."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.config import SchedulerConfig
from engine.memory.kv_cache import BlockCopy, KVCacheManager
from engine.request import Phase, Request, ServiceClass
from engine.scheduling.admission import Admission, HeldBack, Refusal
from engine.scheduling.allowance import StepAllowance
from engine.scheduling.cost import StepCostModel, StepWork
from engine.scheduling.drafting import Draft, draft_room, with_drafts
from engine.scheduling.growth import grow_running
from engine.scheduling.guard import StepGuard
from engine.scheduling.plan import ScheduledRow, StepPlan, scheduled_row
from engine.scheduling.roster import Roster
from engine.scheduling.shortage import StepLimit
from engine.scheduling.stopping import ends_in_flight

MEAN_STEPS = 256
"""So many steps, the latest, make the means that waits are predicted with."""

MOST_HELD_BACK = 8
"""So many tenants of a class are passed in a step at most: looking for victims takes its time."""


@dataclass(slots=True)
class _Sketch:
    """A step in the making. `open_ranks` is how many classes, from the highest, may still have requests admitted.

    `left` is, of each class that has had its turn, how many more of `spare_tokens` it may have.
    """

    budget_tokens: int
    spare_tokens: int
    open_ranks: int
    guard: StepGuard | None
    allowance: StepAllowance | None
    left: list[int] = field(default_factory=list)
    rows: list[ScheduledRow] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    held_back: HeldBack = field(default_factory=HeldBack)


class Planner:
    """Plans from the highest class to the lowest, so that a class is served, and takes victims below, before any row
    of the classes below is made.

    A step costs O(running requests + blocks that are handed out and taken back), of which there are so many at most:
    see `KVCacheManager`. A request that is refused in each step costs O(running requests + what changed).
    """

    def __init__(
        self,
        config: SchedulerConfig,
        classes: Sequence[ServiceClass],
        cache: KVCacheManager,
        roster: Roster,
        limit: StepLimit,
        cost_model: StepCostModel,
    ) -> None:
        self._config = config
        self._cost_model = cost_model
        self._classes = classes
        self._cache = cache
        self._roster = roster
        self._limit = limit
        self._admission = Admission(config, cache, roster)
        self.steps_total = 0
        self.scheduled_tokens_total = 0
        self.mean_prefill_limits = [float(config.step_tokens) for _ in classes]
        """What the latest steps had for prefill of each class; it varies from step to step with who else is there."""
        self.mean_running = [0.0 for _ in classes]
        """How many requests of each class the latest steps had."""
        self.itl_limited_steps = [0 for _ in classes]
        """Steps whose prefill was cut short for the time between tokens of each class."""

    def plan(self, budget: int | None, guard: StepGuard | None, draft: Draft | None) -> StepPlan | None:
        """The next step, all its blocks allocated; None where there is nothing to compute, or not before what is in
        flight has landed.

        What `draft` says comes into the rows of those that were to have one token anyway, when all others have theirs.
        `budget` lowers the tokens of the step, not below one for each running request and one more. Where the device
        had no room for as many, there are fewer, not below one for each running request.
        """
        if self._roster.flights.have_drafts:
            return None  # how far their requests will get, nobody knows
        self._cache.begin_step()
        open_ranks = grow_running(self._roster, self._cache)
        if open_ranks is None:
            return None
        for request in [each for each in self._roster.running if each.boards]:
            self._roster.board(request)
            if not request.block_table:  # it waits again
                open_ranks = min(open_ranks, request.rank)
        starts = [each.scheduled for each in self._roster.running if not each.boards]
        if self._roster.flights:
            here = [each for each in self._roster.running if not each.boards]
            starts = [each.scheduled for each in here if not ends_in_flight(each)]
        running = len(starts)
        most = self._config.step_tokens
        budget_tokens = most if budget is None else min(max(budget, running + 1), most)
        budget_tokens = min(budget_tokens, max(self._limit.tokens, running))
        allowance = None
        if guard is not None and guard.longest_ns is not None:
            decode = StepWork(running, sum(starts) + running, 0, running)
            allowance = StepAllowance(self._cost_model, guard, decode, max(budget_tokens - running, 1))
        sketch = _Sketch(budget_tokens, budget_tokens - running, open_ranks, guard, allowance)
        for rank in self._roster.ranks:
            sketch.left.append(self._plan_running(sketch, rank))
            if rank < sketch.open_ranks and self._roster.waiting[rank]:
                self._plan_waiting(sketch, rank)
        if not sketch.rows:
            return None
        draft_tokens = self._plan_drafts(sketch, draft) if draft is not None else 0
        if allowance is not None and allowance.shortened and guard is not None and guard.itl_rank is not None:
            self.itl_limited_steps[guard.itl_rank] += 1
        self.steps_total += 1
        self.scheduled_tokens_total += sketch.budget_tokens - sketch.spare_tokens
        return StepPlan(self.steps_total, tuple(sketch.rows), tuple(sketch.copies), draft_tokens)

    def _plan_running(self, sketch: _Sketch, rank: int) -> int:
        """Rows for the running requests of a class: one token each, then what more they want, in order.

        What a request wants is what is neither computed nor in flight. Where that is nothing, its next token is being
        drawn and will be there when the step runs; if the request ends with it, there is nothing to do.

        Returns how many tokens of prefill the class may still have in this step.
        """
        limit, allowance = self._prefill_limit(sketch, rank), sketch.allowance
        running = len(self._roster.running.ranks[rank])
        fits = limit if allowance is None else min(limit, allowance.nominal_tokens)
        self.mean_prefill_limits[rank] += (fits - self.mean_prefill_limits[rank]) / MEAN_STEPS
        self.mean_running[rank] += (running - self.mean_running[rank]) / MEAN_STEPS
        spare = min(sketch.spare_tokens, limit)
        unspent, chunk_tokens, rows = spare, self._config.chunk_tokens, sketch.rows
        for request in self._roster.running.ranks[rank]:
            if request.boards:
                continue
            start = request.scheduled
            wanted = len(request.tokens) - start
            if wanted == 1 or not (wanted or ends_in_flight(request)):
                request.scheduled = start + 1
                rows.append(scheduled_row((request, start, 1, request.max_tokens > 0, ())))
                continue
            if not wanted:
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

    def _prefill_limit(self, sketch: _Sketch, rank: int) -> int:
        """The tokens of prefill that a class may have in a step, so that one above it is not kept waiting long."""
        running, waiting = self._roster.running.ranks, self._roster.waiting
        contended = rank and any(len(running[above]) or len(waiting[above]) for above in range(rank))
        limit = (
            max(1, int(self._classes[rank].step_share * sketch.budget_tokens)) if contended else sketch.budget_tokens
        )
        guard = sketch.guard
        return limit if guard is None or rank <= guard.rank else min(limit, guard.prefill_tokens)

    def _plan_waiting(self, sketch: _Sketch, rank: int) -> None:
        """Admit waiting requests of a class, in turn, while there are tokens, slots and blocks for them.

        The first that does not get in keeps out all behind it and all classes below, but for the one way past a head
        that is held back: see `admission`. Whoever took it is the last of the step, as its victims may have freed
        enough for the head.
        """
        queue, held_back = self._roster.waiting[rank], sketch.held_back
        held_back.tenants.clear()
        while (request := queue.head_but(held_back.tenants)) is not None:
            out_of_tokens = sketch.spare_tokens == 0 and self._roster.slots.free  # without a slot, a victim brings one
            out_of_time = sketch.allowance is not None and not sketch.allowance.admits(request)
            full = sketch.left[rank] == 0 or out_of_tokens or out_of_time or not self._cache.may_admit
            spare_tokens = sketch.spare_tokens
            refusal = Refusal.CAPACITY if full else self._admit(sketch, request)
            if refusal is Refusal.BUDGET and len(held_back.tenants) < MOST_HELD_BACK:
                continue
            if refusal is None and not request.boards:  # it has been looked up; its blocks come from the next step on
                self._plan_admitted(sketch, request)
            # Tokens freed by preemption go to the preempting request only: rows planned before it could not use them,
            # so rows of lower classes must not.
            sketch.spare_tokens = min(sketch.spare_tokens, spare_tokens)
            if refusal is not None or held_back.slots:
                sketch.open_ranks = rank
                return

    def _plan_admitted(self, sketch: _Sketch, request: Request) -> None:
        """The first row of a request."""
        wanted = len(request.tokens) - request.computed
        tokens = min(wanted, self._config.chunk_tokens, sketch.spare_tokens, sketch.left[request.rank])
        if sketch.allowance is not None:
            tokens = sketch.allowance.begin(request, tokens)
        sketch.spare_tokens -= tokens
        sketch.left[request.rank] -= tokens
        request.scheduled += tokens
        samples = tokens == wanted and request.max_tokens > 0
        sketch.rows.append(scheduled_row((request, request.computed, tokens, samples, ())))

    def _plan_drafts(self, sketch: _Sketch, draft: Draft) -> int:
        """Put drafts into the rows that can have them, out of what tokens and blocks nobody else has use for in this
        step; returns how many. They count as prefill does, as they make a step longer for everybody in it.
        """
        allowance = sketch.allowance
        spare = sketch.spare_tokens
        if allowance is not None:
            spare = min(spare, allowance.open_to_drafts())
        room = draft_room(sketch.rows, spare, sketch.left, self._config.chunk_tokens)
        if not room.useful:
            return 0
        drafts, total = draft(room), 0
        for index, row in enumerate(sketch.rows):
            request = row.request
            if request not in drafts:
                continue
            most = min(sketch.spare_tokens, sketch.left[request.rank], self._config.chunk_tokens - 1)
            most = min(most, len(drafts[request]))
            if allowance is not None and most > 0:
                most = allowance.extend(row.start, 1 + most) - 1
            drafted = with_drafts(row, drafts[request][: max(most, 0)], self._cache)
            count = len(drafted.drafts)
            sketch.rows[index] = drafted
            sketch.spare_tokens -= count
            sketch.left[request.rank] -= count
            total += count
        return total

    def _admit(self, sketch: _Sketch, request: Request) -> Refusal | None:
        """Give a waiting request a slot and blocks. Nobody of its victims' classes is admitted in the same step."""
        parent = request.fork_of if request.fork_of is not None and _can_fork(request.fork_of, request) else None
        demand = self._cache.demand(request, parent)
        victims = self._admission.make_room(request, demand, self.steps_total, sketch.held_back)
        if isinstance(victims, Refusal):
            if victims is Refusal.BUDGET:
                self._admission.hold_back(request, demand, sketch.held_back)
            return victims
        for victim in victims:
            sketch.open_ranks = min(sketch.open_ranks, victim.rank)
            sketch.spare_tokens += 1
        if parent is not None:
            copied = self._cache.fork(parent, request)
            assert copied is not None, "there was room for a fork and is not"
            sketch.copies += copied
        else:
            admitted = self._cache.admit(request)
            assert admitted, "there was room for a request and is not"
        self._roster.start(request)
        return None


def _can_fork(parent: Request, child: Request) -> bool:
    """Is the parent's KV of the common prompt there, and does the child want no part of it computed anew?"""
    runs = parent.phase is Phase.RUNNING and parent.computed >= child.prompt_tokens
    return runs and not child.needs_whole_prompt
