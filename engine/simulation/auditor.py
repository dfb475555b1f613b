"""Checks a scheduler from outside: the invariants of each step, derived from the requests and not from its state."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.memory import BlockPool
from engine.memory.window_groups import held_blocks
from engine.request import FinishReason, Phase, Request, ServiceClass, TokenDelta
from engine.scheduling import RowResult, ScheduledRow, Scheduler, StepPlan, StepResult
from engine.scheduling.class_activity import ACTIVE_NS
from engine.scheduling.order import TurnKey, order_key, turn_key
from engine.scheduling.step_limits import StepLimits
from engine.scheduling.victims import MAX_PREEMPTIONS
from engine.simulation.draft_audit import DraftAuditor, tokens_given
from engine.simulation.in_flight_audit import InFlightAuditor, Standing


@dataclass(frozen=True, slots=True)
class _Seen:
    """The state of a running request before the step was scheduled."""

    request: Request
    needs_block: bool
    ends: bool
    immune: bool
    is_allocating: bool


@dataclass(slots=True)
class _Race:
    """The range of the difference in service of two tenants of a class while both have waiting requests."""

    low: int = 0
    high: int = 0


class Auditor:
    """Follows one run. Call `before_step`, `after_schedule`, `before_commit`, `after_commit` in order in each step."""

    def __init__(
        self,
        config: SchedulerConfig,
        scheduler: Scheduler,
        pool: BlockPool,
        in_flight: InFlightAuditor,
        drafts: DraftAuditor | None,
        *,
        groups: int,
        stages: int = 1,
    ) -> None:
        """`groups`: blocks that hold the KV of 16 tokens. `stages`: of a pipeline."""
        self._stages = stages
        self._config = config
        self._scheduler = scheduler
        self._pool = pool
        self._in_flight = in_flight
        self._drafts = drafts
        self._groups = groups
        self._speculates = drafts is not None
        """With drafts, a request may fill several blocks in a step."""
        self._standings: dict[str, Standing] = {}
        self._classes: list[ServiceClass] = sorted(config.classes, key=lambda service_class: service_class.priority)
        self._running: list[_Seen] = []
        self._waiting: list[Request] = []
        self._parked: set[str] = set()
        """Waiting forks, which may have to wait for their parent, and requests whose adapter is not resident."""
        self._lacking = False
        self._step = 0
        self._last_admission = -BLOCK_TOKENS - 1, 0
        """The step, and the lowest rank admitted in it: requests of that rank or above are not preempted soon after."""
        self._caused: dict[str, deque[tuple[int, int]]] = {}
        self._reached: dict[str, int] = {}
        self._most_tokens: int | None = None
        """Maximum tokens of the next step after a shortage of device memory."""
        self._lost_from: dict[str, tuple[int, int]] = {}
        """By request id: its stops, and the end of its last lost row. A row that starts there and was lost with it lost
        no more service."""
        self._service: Counter[tuple[int, str]] = Counter()
        self._races: dict[tuple[int, str, str], _Race] = {}
        self._longest = 0
        self._counters: dict[tuple[int, str], float] = {}
        self._tables: dict[str, list[int]] = {}
        self._last_arrival_ns: dict[int, int] = {}

    def on_arrival(self, request: Request, now_ns: int) -> None:
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
                needs_block=self._needs_block(request),
                ends=self._ends(request),
                immune=request.preemptions >= MAX_PREEMPTIONS or request is oldest[request.rank],
                is_allocating=request.is_allocating,
            )
            for request in running
        ]
        self._waiting = [request for request in alive if request.phase is Phase.WAITING]
        self._parked = {
            request.id
            for request in self._waiting
            if request.fork_of is not None or (request.adapter is not None and request.adapter_slot is None)
        }
        self._lacking = not self._can_grow([seen.request for seen in self._running if seen.needs_block])

    def _needs_block(self, request: Request) -> bool:
        """Whether the request's next row needs a block; in a pipeline, that of a token that is known."""
        if self._ends(request) or (self._stages > 1 and self._in_flight.awaits_token(request)):
            return False
        return self._in_flight.needs_block(request)

    def _can_grow(self, growing: list[Request]) -> bool:
        """Whether each can take a block of each group in turn, highest class first, without using a reserve above."""
        free = self._pool.free_blocks
        unused = [self._pool.reservation.unused(rank) for rank in range(len(self._classes))]
        for request in sorted(growing, key=order_key):
            if free - self._groups < sum(unused[: request.rank]):
                return False
            free -= self._groups
            unused[request.rank] = max(0, unused[request.rank] - self._groups)
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
            assert not self._in_flight.await_drafts, "a step is planned before the number of accepted drafts is known"
            assert not (plan.draft_tokens and self._in_flight.have_drafts), "drafts are planned on drafts in flight"
            self._check_budget(plan, admitted, budget_tokens, limits)
            if self._drafts is not None:
                self._drafts.after_schedule(plan, any_preempted=bool(victims))
        else:
            self._check_pause()
        if admitted:
            self._last_admission = self._step, max(request.rank for request in admitted)

    def _note_cached(self, victims: list[_Seen]) -> None:
        """Record cached tokens of requests that are allocating: they find some before they have a row, and may lose
        them again."""
        for seen in self._running:
            if seen.request.phase is Phase.RUNNING:
                self._reach(seen.request, seen.request.computed)
        for request in self._waiting:
            if request.phase is Phase.RUNNING and request.is_allocating:
                self._reach(request, request.computed)
        for seen in victims:
            if seen.is_allocating:
                self._reach(seen.request, seen.request.high_water_tokens)

    def _reach(self, request: Request, tokens: int) -> None:
        self._reached[request.id] = max(self._reached.get(request.id, 0), tokens)

    def _ends(self, request: Request) -> bool:
        return self._in_flight.ends(request, self._scheduler.window_tokens_of(request.service_class.name))

    def _check_pause(self) -> None:
        """Reasons not to schedule while requests run: all end in flight; one does, and its blocks are needed; the
        number of accepted drafts has to be known; requests are allocating, or were preempted for one that is; in a
        pipeline, the next tokens of all are in flight, but for those that were preempted; or blocks are lacking that
        are being copied."""
        running = [seen for seen in self._running if not self._is_in_between(seen.request)]
        if not self._in_flight.await_drafts and not all(map(self._is_complete, running)):
            assert self._lacking, "running requests are kept waiting"
            if self._scheduler.fetches is not None and self._scheduler.fetches.holds_blocks(alone=len(running) == 1):
                return
            assert any(seen.ends for seen in self._running), (
                "running requests are kept waiting for blocks that no request frees"
            )

    def _is_complete(self, seen: _Seen) -> bool:
        """Whether all that can be computed of a request is in flight."""
        return seen.ends or (self._stages > 1 and self._in_flight.awaits_token(seen.request))

    def _is_in_between(self, request: Request) -> bool:
        allocating = any(waiting.is_allocating for waiting in self._waiting)
        for_another = self._scheduler.returning_blocks > 0 or allocating or self._stages > 1
        return request.is_allocating or (request.phase is Phase.WAITING and for_another)

    def _check_victims(self, victims: list[_Seen], admitted: list[Request]) -> None:
        # One that gets its blocks in parts waits again if cached blocks that its recurrent state stands for are gone.
        victims = [seen for seen in victims if not (seen.is_allocating and seen.request.state_tokens)]
        if not victims:
            return
        highest = min(seen.request.rank for seen in victims)
        assert all(request.rank < highest for request in admitted), "a request is admitted while its class is preempted"
        returning = self._scheduler.returning_blocks > 0  # for a request that is admitted later
        assert admitted or self._lacking or returning, "a request is preempted in vain"
        assert not any(seen.ends for seen in victims), "a request that ends in flight is preempted"
        soon = self._lacking and any(seen.ends for seen in self._running)
        assert not soon, "a request is preempted for blocks that are freed when a step in flight completes"
        for seen in victims:
            peers = [other for other in self._running if other.request.rank == seen.request.rank]
            spared = [
                other for other in peers if other.request.phase is Phase.RUNNING and not (other.immune or other.ends)
            ]
            assert not (seen.immune and spared), f"{seen.request.id} is immune and others are not"
        if self._lacking:
            left = [seen.request.rank for seen in self._running if seen.request.phase is Phase.RUNNING]
            assert admitted or max(left, default=0) <= highest, "a higher class is preempted while a lower one runs"
            at, rank = self._last_admission
            undone = rank >= highest and self._step - at <= BLOCK_TOKENS and not self._speculates
            assert not undone, "an admission is undone by growth: thrash"
        else:
            self._check_preemption_budget(admitted, sum(not seen.request.service_class.yields for seen in victims))

    def _check_preemption_budget(self, admitted: list[Request], preemptions: int) -> None:
        tenants = list({request.tenant: None for request in admitted})
        if len(tenants) != 1:
            return
        events = self._caused.setdefault(tenants[0], deque())
        events.append((self._step, preemptions))
        while events[0][0] <= self._step - self._config.preemption_window_steps:
            events.popleft()
        limit = 2 * self._config.tenant_preemptions  # a full bucket, and one refill
        assert sum(count for _, count in events) <= limit, f"{tenants[0]!r} causes too many preemptions"

    def _check_turns(self, admitted: list[Request], victims: list[_Seen]) -> None:
        """No request overtakes an earlier one of the same tenant. A request that overtakes a higher class, or another
        tenant of its class that is first in VTC's order, has a victim of its own. Forks wait for their parent."""
        overtakers: dict[str, Request] = {}
        for request in self._waiting:
            if request.phase is not Phase.WAITING or request.id in self._parked or self._awaits_blocks(request):
                continue
            for other in admitted:
                same = other.rank == request.rank and other.tenant == request.tenant
                assert not same or other.arrival < request.arrival, f"{request.id} is overtaken"
                if (request.rank, *self._turn(request)) < (other.rank, *self._turn(other)):
                    overtakers[other.id] = other
        ranks = sorted(seen.request.rank for seen in victims)
        for other in sorted(overtakers.values(), key=order_key, reverse=True):
            lowest = ranks.pop() if ranks else -1
            assert lowest > other.rank, f"{other.id} overtakes without a victim of its own"

    def _awaits_blocks(self, request: Request) -> bool:
        return self._scheduler.fetches is not None and self._scheduler.fetches.awaits(request)

    def _turn(self, request: Request) -> TurnKey:
        """The request's key, if it were the first of its tenant."""
        return turn_key(self._scheduler.waiting_queues[request.rank].counter(request.tenant), request)

    def _check_slots(self, admitted: list[Request], now_ns: int) -> None:
        """The reservation inequality for slots, with the reserves of active classes only."""
        left = [seen.request for seen in self._running if seen.request.phase is Phase.RUNNING]
        held = Counter(request.rank for request in [*left, *admitted])
        absent_since_ns = now_ns - ACTIVE_NS
        reserved = [
            int(service_class.reserved_fraction * self._config.max_running)
            if self._last_arrival_ns.get(rank, absent_since_ns) > absent_since_ns
            else 0
            for rank, service_class in enumerate(self._classes)
        ]
        for rank in {request.rank: None for request in admitted}:
            kept = sum(max(0, reserved[above] - held[above]) for above in range(rank))
            free = self._config.max_running - sum(held.values())
            assert free >= kept, f"rank {rank} took a slot that is kept for a class above"

    def _check_budget(self, plan: StepPlan, admitted: list[Request], budget_tokens: int, limits: StepLimits) -> None:
        assert plan.total_tokens <= budget_tokens, "the step is over its budget"
        if self._most_tokens is not None:
            smaller = plan.total_tokens <= max(self._most_tokens, len(plan.rows))
            assert smaller, "a step is as large as one that ran out of device memory"
            self._most_tokens = None
        new = {request.id for request in admitted}
        prefill: Counter[int] = Counter()
        for row in plan.rows:
            prefill[row.request.rank] += row.tokens - (row.request.id not in new)
        for rank, service_class in enumerate(self._classes):
            name = service_class.name
            if any(row.request.rank < rank for row in plan.rows):
                share = max(1, int(service_class.step_share * budget_tokens))
                assert prefill[rank] <= share, f"prefill of class {name} takes more than its share of the step"
            if rank > limits.rank:
                assert prefill[rank] <= limits.prefill_tokens, f"prefill of class {name} makes the step too long"
        for row in plan.rows:
            wanted = min(len(row.request.tokens) - row.start, self._config.chunk_tokens)
            if row.tokens < wanted and row.request.rank == 0:
                below = any(other.tokens > 1 and other.request.rank > 0 for other in plan.rows)
                assert not below, f"the prompt of {row.request.id} waits for one of a lower class"

    def before_commit(self, plan: StepPlan) -> None:
        self._counters = self._tenant_counters()
        self._tables = {row.request.id: held_blocks(row.request).copy() for row in plan.rows}
        self._standings = self._in_flight.on_complete(plan)

    def _tenant_counters(self) -> dict[tuple[int, str], float]:
        """The counters of tenants with waiting requests, which are not lifted."""
        return {
            (rank, tenant): queue.counter(tenant)
            for rank, queue in enumerate(self._scheduler.waiting_queues)
            for tenant in dict.fromkeys([request.tenant for request in queue])
        }

    def after_commit(self, plan: StepPlan, deltas: Sequence[TokenDelta], result: StepResult | None) -> None:
        """`result`: None for a step that failed."""
        for delta in deltas:
            if delta.finish_reason is FinishReason.ERROR:
                table = self._tables[delta.request_id]
                found = [block for block in table if self._pool.hash_of(block) is not None]
                assert not found, f"{delta.request_id} has failed, and its blocks {found} can be found"
        self._in_flight.drop_rows(delta.request_id for delta in deltas if delta.finish_reason is not None)
        if result is not None and self._drafts is not None:
            live = [request_id for request_id, standing in self._standings.items() if standing is Standing.LIVE]
            self._drafts.after_commit(plan, result, live, deltas, self._in_flight.pending)
            self._in_flight.reject(plan, result)
        self._check_service(plan, deltas, result)
        self._check_races()

    def after_give_back(self, plan: StepPlan, deltas: Sequence[TokenDelta]) -> None:
        """The step was undone, and the next one is smaller; or no smaller one exists, and the largest request ends."""
        live = [row for row in plan.rows if self._standings[row.request.id] is Standing.LIVE]
        for row in live:
            if row.request.phase is Phase.RUNNING:
                undone = (row.request.computed, row.request.scheduled) == (self._in_flight.start_of(row),) * 2
                assert undone, "a row was not undone"
                if self._drafts is not None and row.drafts:
                    self._drafts.check_trimmed(row.request)
            if row.request.phase is Phase.WAITING:
                self._reach(row.request, row.start)
        self._in_flight.on_step_failure(self._standings)
        self._most_tokens = plan.total_tokens // 2
        smallest = plan.total_tokens == len(live)
        assert len(deltas) == smallest, "a step is not made smaller, or a request ends for lack of memory too early"
        for delta in deltas:
            assert delta.finish_reason is FinishReason.ERROR
            ended = next(row for row in live if row.request.id == delta.request_id)
            assert ended.start == max(row.start for row in live), "it is not the largest request that ends"
        self._check_service(plan, deltas, None)

    def _check_service(self, plan: StepPlan, deltas: Sequence[TokenDelta], result: StepResult | None) -> None:
        """Count the service of the step and compare it with what the scheduler charged."""
        served: Counter[tuple[int, str]] = Counter()
        given = {delta.request_id: delta for delta in deltas}
        for index, row in enumerate(plan.rows):
            request, start = row.request, row.start
            end = start + row.tokens
            self._longest = max(self._longest, end)
            standing, reached = self._standings[request.id], self._reached.get(request.id, 0)
            if standing is Standing.LOST:
                stops = request.preemptions + request.pauses
                if self._lost_from.get(request.id) != (stops, start):
                    self._reached[request.id] = max(reached, start)  # it had these tokens, computed or cached
                self._lost_from[request.id] = stops, end
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
        """VTC's bound (Sheng et al. 2024) on the difference in service of two tenants with waiting requests."""
        waiting = self._tenant_counters()
        pairs = [(a, b) for a in waiting for b in waiting if a[0] == b[0] and a[1] < b[1]]
        races: dict[tuple[int, str, str], _Race] = {}
        bound = 2 * (self._longest + 2 * self._pool.num_blocks * BLOCK_TOKENS)
        for (rank, one), (_, other) in pairs:
            ahead = self._service[rank, one] - self._service[rank, other]
            race = self._races.get((rank, one, other), _Race(ahead, ahead))
            race.low, race.high = min(race.low, ahead), max(race.high, ahead)
            assert race.high - race.low <= bound, f"{one!r} and {other!r} both wait and are not served equally"
            races[rank, one, other] = race
        self._races = races


def _drawn(row: ScheduledRow, outcome: RowResult, given: TokenDelta | None) -> int:
    """The output tokens that a row is charged for: those delivered, or that would have been to a request that left."""
    if row.drafts and outcome.finite and given is not None:
        return tokens_given(given)
    return 1 + outcome.accepted if row.samples else 0
