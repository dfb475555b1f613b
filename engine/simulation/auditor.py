"""Judges a scheduler from outside: what must hold of a step, worked out from the requests and not from its state."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.memory import BlockPool
from engine.request import FinishReason, Phase, Request, ServiceClass, TokenDelta
from engine.scheduling import RowResult, ScheduledRow, Scheduler, StepPlan, StepResult
from engine.scheduling.class_activity import ACTIVE_NS
from engine.scheduling.order import TurnKey, order_key, turn_key
from engine.scheduling.step_limits import StepLimits
from engine.scheduling.victims import MAX_PREEMPTIONS
from engine.simulation.draft_audit import DraftAuditor, tokens_given
from engine.simulation.flight_audit import FlightAuditor, Standing


class AuditedPool(BlockPool):
    """A pool that recounts, at each allocation, whether it took what it may and evicted what it should."""

    def allocate(self, count: int, rank: int = 0, tenant: str = "", holder: int = 0) -> list[int]:
        blocks = super().allocate(count, rank, tenant, holder)
        self.audit_reserve(rank)
        return blocks

    def pledge(self, count: int, rank: int) -> None:
        super().pledge(count, rank)
        self.audit_reserve(rank)

    def _take(self, count: int, rank: int, tenant: str, holder: int) -> list[int]:
        before = list(zip(self._hash_of, self._rank_of, self._tenant_of, self._lists.list_of, strict=True))
        owned = Counter(self._tenant_of[block] for block in range(self.num_blocks) if self._has_content(block))
        blocks = super()._take(count, rank, tenant, holder)
        evicted = [before[block] for block in blocks if before[block][0] is not None]
        if not evicted:
            return blocks
        left = [block for block in range(self.num_blocks) if not self._references[block]]
        assert all(self._hash_of[block] is not None for block in left), "content is evicted, an empty block is not"
        for _, last_rank, owner, in_list in evicted:
            if owner != tenant:
                own_left = any(self._tenant_of[block] == tenant for block in left)
                over = owned[tenant] >= self._tenant_blocks
                assert not (over and own_left), f"{tenant!r} is over its share and evicts a block of {owner!r}"
                protected = in_list == self._lists.protected(last_rank)
                lower_left = any(self._rank_of[block] > last_rank for block in left)
                assert not (protected and lower_left), "a class's cache is evicted before that of one below"
        return blocks

    def acquire(self, blocks: Sequence[int], rank: int = 0, holder: int = 0, pledged: int = 0) -> None:  # type: ignore[override]
        super().acquire(blocks, rank, holder, pledged)
        if not pledged:
            self.audit_reserve(rank)

    def audit_reserve(self, rank: int) -> None:
        """The one inequality, for a rank that has just taken blocks."""
        held, free = self._held(), sum(not count for count in self._references) - sum(self._pledged)
        kept = sum(max(0, self.reservation.reserved[above] - held[above]) for above in range(rank))
        assert free >= kept, f"rank {rank} took blocks that are kept for a class above: {free} free, {kept} kept"

    def _held(self) -> Counter[int]:
        """How many blocks count for each rank: those that no lower one holds, and those that are pledged to it."""
        held = Counter(dict(enumerate(self._pledged)))
        for block in range(self.num_blocks):
            holding = [rank for rank in self._ranks if self._holders[rank][block]]
            if holding:
                held[max(holding)] += 1
        return held

    def _has_content(self, block: int) -> bool:
        return self._references[block] > 0 or self._hash_of[block] is not None


@dataclass(frozen=True, slots=True)
class _Seen:
    """A running request as it was before the step was scheduled."""

    request: Request
    outgrown: bool
    ends: bool
    immune: bool
    is_allocating: bool


@dataclass(slots=True)
class _Race:
    """Two tenants of a class that have both had requests waiting for a while: how far one was ahead of the other."""

    low: int = 0
    high: int = 0


class Auditor:
    """Follows one run. `before_step`, `after_schedule`, `before_commit`, `after_commit`: once a step, in this order."""

    def __init__(
        self,
        config: SchedulerConfig,
        scheduler: Scheduler,
        pool: BlockPool,
        in_flight: FlightAuditor,
        drafts: DraftAuditor | None,
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._pool = pool
        self._flights = in_flight
        self._drafts = drafts
        self._speculates = drafts is not None
        """Requests with drafts fill any number of blocks in so many steps."""
        self._standings: dict[str, Standing] = {}
        self._classes: list[ServiceClass] = sorted(config.classes, key=lambda each: each.priority)
        self._running: list[_Seen] = []
        self._waiting: list[Request] = []
        self._parked: set[str] = set()
        """Those of the waiting that may have to wait for the one that they fork."""
        self._lacking = False
        self._step = 0
        self._last_admission = -BLOCK_TOKENS - 1, 0
        """The step, and the lowest rank of those admitted in it: nobody of that rank or above gives way soon."""
        self._caused: dict[str, deque[tuple[int, int]]] = {}
        self._reached: dict[str, int] = {}
        self._most_tokens: int | None = None
        """Of the next step, where there was no room for the last."""
        self._lost_from: dict[str, int] = {}
        """Where a row that was lost ended: with one that goes on from there, no more was lost."""
        self._service: Counter[tuple[int, str]] = Counter()
        self._races: dict[tuple[int, str, str], _Race] = {}
        self._longest = 0
        self._counters: dict[tuple[int, str], float] = {}
        self._tables: dict[str, list[int]] = {}
        self._last_arrival_ns: dict[int, int] = {}

    def arrived(self, request: Request, now_ns: int) -> None:
        self._last_arrival_ns[request.rank] = now_ns

    def before_step(self, alive: Sequence[Request], step: int) -> None:
        self._step = step
        running = [request for request in alive if request.phase is Phase.RUNNING]
        oldest: dict[int, Request] = {}
        for request in running:
            if request.rank not in oldest or order_key(request) < order_key(oldest[request.rank]):
                oldest[request.rank] = request
        self._running = [
            _Seen(
                request,
                outgrown=self._flights.outgrown(request) and not self._ends(request),
                ends=self._ends(request),
                immune=request.preemptions >= MAX_PREEMPTIONS or request is oldest[request.rank],
                is_allocating=request.is_allocating,
            )
            for request in running
        ]
        self._waiting = [request for request in alive if request.phase is Phase.WAITING]
        self._parked = {request.id for request in self._waiting if request.fork_of is not None}
        self._lacking = not self._can_grow([seen.request for seen in self._running if seen.outgrown])

    def _can_grow(self, outgrown: list[Request]) -> bool:
        """Each takes a block in its turn, highest class first, without touching a reserve above."""
        free = self._pool.free_blocks
        unused = [self._pool.reservation.unused(rank) for rank in range(len(self._classes))]
        for request in sorted(outgrown, key=order_key):
            if free - 1 < sum(unused[: request.rank]):
                return False
            free -= 1
            unused[request.rank] = max(0, unused[request.rank] - 1)
        return True

    def after_schedule(self, plan: StepPlan | None, budget_tokens: int, limits: StepLimits, now_ns: int) -> None:
        victims = [seen for seen in self._running if seen.request.phase is Phase.WAITING]
        admitted = [request for request in self._waiting if request.phase is Phase.RUNNING]
        self._check_victims(victims, admitted)
        self._note_cached(victims)
        if admitted:
            self._check_turns(admitted, victims)
            self._check_slots(admitted, now_ns)
        if plan is not None:
            self._check_budget(plan, admitted, budget_tokens, limits)
            if self._drafts is not None:
                self._drafts.after_schedule(plan, anybody_gave_way=bool(victims))
        else:
            self._check_pause()
        if admitted:
            self._last_admission = self._step, max(request.rank for request in admitted)

    def _note_cached(self, victims: list[_Seen]) -> None:
        """One that gets its blocks step by step finds some of them cached before it has a row, and may lose them so."""
        for seen in self._running:
            if seen.request.phase is Phase.RUNNING:
                self._reach(seen.request, seen.request.computed)
        for seen in victims:
            if seen.is_allocating:
                self._reach(seen.request, seen.request.high_water_tokens)

    def _reach(self, request: Request, tokens: int) -> None:
        self._reached[request.id] = max(self._reached.get(request.id, 0), tokens)

    def _ends(self, request: Request) -> bool:
        return self._flights.ends(request, self._scheduler.window_tokens_of(request.service_class.name))

    def _check_pause(self) -> None:
        """Nothing is scheduled though requests run: all will have ended, or one will, and its blocks are needed; or
        there are drafts in flight; or they have not all their blocks yet, or gave way to one that will get theirs."""
        running = [seen for seen in self._running if not self._is_in_between(seen.request)]
        if not self._flights.have_drafts and not all(seen.ends for seen in running):
            assert self._lacking, "what runs is kept waiting"
            assert any(seen.ends for seen in self._running), (
                "what runs is kept waiting for blocks that nobody gives back"
            )

    def _is_in_between(self, request: Request) -> bool:
        for_another = self._scheduler.returning_blocks > 0 or any(each.is_allocating for each in self._waiting)
        return request.is_allocating or (request.phase is Phase.WAITING and for_another)

    def _check_victims(self, victims: list[_Seen], admitted: list[Request]) -> None:
        if not victims:
            return
        highest = min(seen.request.rank for seen in victims)
        assert all(request.rank < highest for request in admitted), "one is admitted while its like has to give way"
        returning = self._scheduler.returning_blocks > 0  # to the one that they gave way to, who comes in later
        assert admitted or self._lacking or returning, "someone gave way in vain"
        assert not any(seen.ends for seen in victims), "one gave way that would have ended with what is in flight"
        soon = self._lacking and any(seen.ends for seen in self._running)
        assert not soon, "someone gave way for blocks that are given back when a step in flight lands"
        for seen in victims:
            peers = [other for other in self._running if other.request.rank == seen.request.rank]
            spared = [
                other for other in peers if other.request.phase is Phase.RUNNING and not (other.immune or other.ends)
            ]
            assert not (seen.immune and spared), f"{seen.request.id} is immune and others are not"
        if self._lacking:
            left = [seen.request.rank for seen in self._running if seen.request.phase is Phase.RUNNING]
            assert admitted or max(left, default=0) <= highest, "a higher class gives way where a lower one runs"
            at, rank = self._last_admission
            undone = rank >= highest and self._step - at <= BLOCK_TOKENS and not self._speculates
            assert not undone, "an admission is undone by growth: thrash"
        else:
            self._check_preemption_budget(admitted, len(victims))

    def _check_preemption_budget(self, admitted: list[Request], preemptions: int) -> None:
        tenants = list({request.tenant: None for request in admitted})
        if len(tenants) != 1:
            return
        events = self._caused.setdefault(tenants[0], deque())
        events.append((self._step, preemptions))
        while events[0][0] <= self._step - self._config.preemption_window_steps:
            events.popleft()
        most = 2 * self._config.tenant_preemptions  # a full bucket, and what it is refilled by
        assert sum(count for _, count in events) <= most, f"{tenants[0]!r} causes too many preemptions"

    def _check_turns(self, admitted: list[Request], victims: list[_Seen]) -> None:
        """Nobody overtakes an earlier request of the same tenant. Whoever overtakes a higher class, or a tenant of its
        own whose turn comes first, makes its room by a victim of its own; forks wait for their parent."""
        overtakers: dict[str, Request] = {}
        for request in self._waiting:
            if request.phase is not Phase.WAITING or request.id in self._parked:
                continue
            for other in admitted:
                same = other.rank == request.rank and other.tenant == request.tenant
                assert not same or other.arrival < request.arrival, f"{request.id} is overtaken"
                if (request.rank, *self._turn(request)) < (other.rank, *self._turn(other)):
                    overtakers[other.id] = other
        ranks = sorted(seen.request.rank for seen in victims)
        for other in sorted(overtakers.values(), key=order_key, reverse=True):
            lowest = ranks.pop() if ranks else -1
            assert lowest > other.rank, f"{other.id} overtakes and has nobody of its own give way"

    def _turn(self, request: Request) -> TurnKey:
        """The key of its turn, were it the first of its tenant."""
        return turn_key(self._scheduler.waiting_queues[request.rank].counter(request.tenant), request)

    def _check_slots(self, admitted: list[Request], now_ns: int) -> None:
        """The one inequality of reserves, for slots, as long as a class is about."""
        left = [seen.request for seen in self._running if seen.request.phase is Phase.RUNNING]
        held = Counter(request.rank for request in [*left, *admitted])
        absent_since_ns = now_ns - ACTIVE_NS
        reserved = [
            int(each.reserved_fraction * self._config.max_running)
            if self._last_arrival_ns.get(rank, absent_since_ns) > absent_since_ns
            else 0
            for rank, each in enumerate(self._classes)
        ]
        for rank in {request.rank: None for request in admitted}:
            kept = sum(max(0, reserved[above] - held[above]) for above in range(rank))
            free = self._config.max_running - sum(held.values())
            assert free >= kept, f"rank {rank} took a slot that is kept for a class above"

    def _check_budget(self, plan: StepPlan, admitted: list[Request], budget_tokens: int, limits: StepLimits) -> None:
        assert plan.total_tokens <= budget_tokens, "the step is over its budget"
        if self._most_tokens is not None:
            smaller = plan.total_tokens <= max(self._most_tokens, len(plan.rows))
            assert smaller, "a step is as large as one that there was no room for"
            self._most_tokens = None
        new = {request.id for request in admitted}
        prefill: Counter[int] = Counter()
        for row in plan.rows:
            prefill[row.request.rank] += row.tokens - (row.request.id not in new)
        for rank, each in enumerate(self._classes):
            if any(row.request.rank < rank for row in plan.rows):
                most = max(1, int(each.step_share * budget_tokens))
                assert prefill[rank] <= most, f"prefill of class {each.name} takes more than its share of the step"
            if rank > limits.rank:
                assert prefill[rank] <= limits.prefill_tokens, f"prefill of class {each.name} makes the step too long"
        for row in plan.rows:
            wanted = min(len(row.request.tokens) - row.start, self._config.chunk_tokens)
            if row.tokens < wanted and row.request.rank == 0:
                below = any(other.tokens > 1 and other.request.rank > 0 for other in plan.rows)
                assert not below, f"the prompt of {row.request.id} waits for one of a lower class"

    def before_commit(self, plan: StepPlan) -> None:
        self._counters = self._tenant_counters()
        self._tables = {row.request.id: row.request.block_table.copy() for row in plan.rows}
        self._standings = self._flights.landed(plan)

    def _tenant_counters(self) -> dict[tuple[int, str], float]:
        """Each tenant's counter, of those that have requests waiting and so are not lifted."""
        return {
            (rank, tenant): queue.counter(tenant)
            for rank, queue in enumerate(self._scheduler.waiting_queues)
            for tenant in dict.fromkeys([request.tenant for request in queue])
        }

    def after_commit(self, plan: StepPlan, deltas: Sequence[TokenDelta], result: StepResult | None) -> None:
        """`result`: None of a step that failed."""
        for delta in deltas:
            if delta.finish_reason is FinishReason.ERROR:
                table = self._tables[delta.request_id]
                found = [block for block in table if self._pool.hash_of(block) is not None]
                assert not found, f"{delta.request_id} has failed, and its blocks {found} can be found"
        self._flights.unwanted(delta.request_id for delta in deltas if delta.finish_reason is not None)
        if result is not None and self._drafts is not None:
            live = [each for each, standing in self._standings.items() if standing is Standing.LIVE]
            self._drafts.after_commit(plan, result, live, deltas)
        self._check_service(plan, deltas, result)
        self._check_races()

    def after_give_back(self, plan: StepPlan, deltas: Sequence[TokenDelta]) -> None:
        """Nothing came of a step, and the next is smaller; or it could not be, and the largest request makes room."""
        live = [row for row in plan.rows if self._standings[row.request.id] is Standing.LIVE]
        for row in live:
            if row.request.phase is Phase.RUNNING:
                assert (row.request.computed, row.request.scheduled) == (row.start, row.start), (
                    "a row was not given back"
                )
                if self._drafts is not None and row.drafts:
                    self._drafts.check_trimmed(row.request)
            if row.request.phase is Phase.WAITING:
                self._reach(row.request, row.start)
        self._flights.came_to_nothing(self._standings)
        self._most_tokens = plan.total_tokens // 2
        smallest = plan.total_tokens == len(live)
        assert len(deltas) == smallest, "a step is not made smaller, or somebody ends for want of room too early"
        for delta in deltas:
            assert delta.finish_reason is FinishReason.ERROR
            ended = next(row for row in live if row.request.id == delta.request_id)
            assert ended.start == max(row.start for row in live), "it is not the largest request that ends"
        self._check_service(plan, deltas, None)

    def _check_service(self, plan: StepPlan, deltas: Sequence[TokenDelta], result: StepResult | None) -> None:
        """Count the step's service, and compare it with what was charged."""
        served: Counter[tuple[int, str]] = Counter()
        given = {delta.request_id: delta for delta in deltas}
        for index, row in enumerate(plan.rows):
            request, start = row.request, row.start
            end = start + row.tokens
            self._longest = max(self._longest, end)
            standing, reached = self._standings[request.id], self._reached.get(request.id, 0)
            if standing is Standing.LOST and self._lost_from.get(request.id) != start:
                self._reached[request.id] = max(reached, start)  # as much it had, be it from the cache
                self._lost_from[request.id] = end
            if result is None or standing in (Standing.LOST, Standing.SURPLUS):
                continue
            first = max(start, reached)
            drawn = _drawn(row, result.rows[index], given.get(request.id))
            count = max(0, min(end, request.prompt_tokens) - first) + 2 * drawn
            served[request.rank, request.tenant] += count
            self._reached[request.id] = max(reached, end)
        queues = self._scheduler.waiting_queues
        for (rank, tenant), counter in self._counters.items():
            charged = (queues[rank].counter(tenant) - counter) * self._classes[rank].weight
            assert abs(charged - served[rank, tenant]) < 1e-6, f"{tenant!r} is charged {charged} for its service"
        self._service.update(served)

    def _check_races(self) -> None:
        """VTC's bound: of two tenants that both have requests waiting, neither gets far ahead of the other."""
        waiting = self._tenant_counters()
        pairs = [(a, b) for a in waiting for b in waiting if a[0] == b[0] and a[1] < b[1]]
        races: dict[tuple[int, str, str], _Race] = {}
        most = 2 * (self._longest + 2 * self._pool.num_blocks * BLOCK_TOKENS)
        for (rank, one), (_, other) in pairs:
            ahead = self._service[rank, one] - self._service[rank, other]
            race = self._races.get((rank, one, other), _Race(ahead, ahead))
            race.low, race.high = min(race.low, ahead), max(race.high, ahead)
            assert race.high - race.low <= most, f"{one!r} and {other!r} both wait and are not served alike"
            races[rank, one, other] = race
        self._races = races


def _drawn(row: ScheduledRow, outcome: RowResult, given: TokenDelta | None) -> int:
    """How many tokens a row is charged for: those that were handed out, or could have been to one that has left."""
    if row.drafts and outcome.finite and given is not None:
        return tokens_given(given)
    return 1 + outcome.accepted if row.samples else 0
