"""Admission of waiting requests: a slot and KV blocks, if necessary by preempting requests of lower classes.

**A request that waits for capacity is never overtaken.** Where no preemption frees enough for the first request of a
queue, it waits for what its own class and those above give back. Anything admitted before it would delay it, so it
blocks all requests behind it and all classes below.

**A request that waits for its tenant's preemption budget may be overtaken, at no cost to it.** Other requests did not
exhaust that budget. A request that overtakes, of another tenant of its class or of a class below, frees its room by
preemptions of its own. Free slots and blocks that the budget-blocked requests need are left untouched, so overtaking
never delays them. One request overtakes per step, so the blocked ones are tried again before the next.

A blocked request is admitted in the end. Each overtaking request replaces at least one of a class strictly below its
own, and nothing else is admitted to those classes until then, so overtaking ends. From then on, everything that running
requests free stays free until it is enough, unless the budget recovers first.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from engine.config import SchedulerConfig
from engine.memory.kv_cache import BlockDemand, KVCacheManager
from engine.memory.prefix_hits import PrefixHits
from engine.request import Request
from engine.scheduling.request_table import RequestTable
from engine.scheduling.victims import victims_for_waiting

OVERTAKING_HEADROOM_BLOCKS = 2
"""Blocks of each group that an overtaking request leaves free beyond its own: one for its next block, and one for a
blocked request that would have run alone and now does not."""


class AdmissionRefusal(Enum):
    """Why a waiting request is not admitted: no capacity even with preemptions, no preemption budget left, or blocks of
    the second pool are being fetched for it."""

    CAPACITY = auto()
    BUDGET = auto()
    FETCHING = auto()


@dataclass(slots=True)
class BudgetBlocked:
    """The waiting requests of this step that were refused for their tenants' preemption budget, and what they need.

    `tenants` are those of the class that is being planned; `slots`, `blocks` and `hits` cover all classes planned so
    far.
    """

    tenants: list[str] = field(default_factory=list)
    slots: int = 0
    blocks: int = 0
    hits: list[PrefixHits] = field(default_factory=list)
    """Cached blocks that they will share: preempting another holder of such a block frees nothing for them."""


class PreemptionBudget:
    """A token bucket per tenant: `burst` preemptions at once, refilled by as many in `window_steps` steps.

    It keeps priority from being abused: a tenant that sends request after request to preempt others waits like any
    other. Levels are integers, in preemptions times `window_steps`. A full bucket takes no memory.
    """

    def __init__(self, burst: int, window_steps: int) -> None:
        self._burst = burst
        self._window_steps = window_steps
        self._spent: dict[str, tuple[int, int]] = {}
        """By tenant: what is spent of its bucket, and the step as of which."""

    def left(self, tenant: str, step: int) -> int:
        """Preemptions that the tenant's waiting requests may cause at this step."""
        return self._burst - -(-self._spent_now(tenant, step) // self._window_steps)

    def spend(self, tenant: str, step: int, preemptions: int) -> None:
        """Take preemptions from the tenant's bucket."""
        assert preemptions <= self.left(tenant, step), f"{tenant} has caused too many preemptions"
        self._spent[tenant] = (self._spent_now(tenant, step) + preemptions * self._window_steps, step)
        if len(self._spent) > 1024:
            self._spent = {name: spent for name, spent in self._spent.items() if self._spent_now(name, step)}

    def _spent_now(self, tenant: str, step: int) -> int:
        spent, since = self._spent.get(tenant, (0, step))
        return max(0, spent - (step - since) * self._burst)


class Admission:
    """Decides what it takes to admit a waiting request, and owns the tenants' preemption budgets."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager, requests: RequestTable) -> None:
        self._cache = cache
        self._requests = requests
        self.preemption_budget = PreemptionBudget(config.tenant_preemptions, config.preemption_window_steps)

    def make_room(
        self, request: Request, demand: BlockDemand, step: int, blocked: BudgetBlocked
    ) -> list[Request] | AdmissionRefusal:
        """Free a slot and blocks for a waiting request, in addition to what `blocked` requests need.

        Returns the requests that were preempted for it. None is preempted in vain: all that the admission takes is
        known before the first preemption. O(running requests).
        """
        rank = request.rank
        kept_slots = min(blocked.slots, max(self._requests.available_slots(rank), 0))
        missing_blocks = self._cache.shortage(request, demand, self._blocks_to_leave(rank, blocked))
        missing_slots = max(0, 1 + kept_slots - self._requests.available_slots(rank))
        if not missing_blocks and not missing_slots:
            return []
        running = self._requests.running.ranks
        if not any(map(len, running[rank + 1 :])):
            return AdmissionRefusal.CAPACITY
        if missing_blocks and (self._cache.returning_blocks or missing_blocks <= self._cache.lent_blocks):
            return AdmissionRefusal.CAPACITY  # no preemption for blocks that are about to be free
        max_victims = self.preemption_budget.left(request.tenant, step)
        gain = self._cache.preemption_gain(rank, [demand.hits, *blocked.hits])
        victims = victims_for_waiting(
            gain,
            running,
            request,
            missing_blocks=missing_blocks,
            missing_slots=missing_slots,
            max_victims=max_victims,
        )
        if not victims:
            return AdmissionRefusal.CAPACITY
        charged = sum(not victim.service_class.yields for victim in victims)
        if charged > max_victims:
            return AdmissionRefusal.BUDGET
        self.preemption_budget.spend(request.tenant, step, charged)
        for victim in victims:
            self._requests.preempt(victim, cause=rank)
        if missing_blocks and self._cache.returning_blocks:
            return AdmissionRefusal.CAPACITY  # a step returns a bounded number of blocks: it is admitted after the rest
        return victims

    def fetch(self, request: Request, demand: BlockDemand, blocked: BudgetBlocked) -> bool:
        """Let a request that could be admitted without preemption wait for blocks of the second pool, if that is faster
        than computing them. Not where others wait for their tenants' preemption budgets: what is free is kept for
        them."""
        rank = request.rank
        if blocked.slots or self._requests.available_slots(rank) < 1:
            return False
        fetch = self._cache.fetch(request, demand, self._blocks_to_leave(rank, blocked), self._requests.now_ns)
        if fetch is None:
            return False
        self._requests.await_blocks(request, fetch.order.number)
        return True

    def reserve(self, request: Request, demand: BlockDemand, blocked: BudgetBlocked) -> None:
        """Add a budget-blocked request to `blocked`, so that what it needs of the free capacity stays free."""
        blocked.tenants.append(request.tenant)
        blocked.slots += 1
        blocked.hits.append(demand.hits)
        available = max(self._cache.available_blocks(request.rank), 0)
        blocked.blocks += self._cache.shortage(request, demand, available + self._headroom_blocks(request.rank))

    def _blocks_to_leave(self, rank: int, blocked: BudgetBlocked) -> int:
        headroom = self._headroom_blocks(rank)
        if not blocked.slots:
            return headroom
        kept = min(blocked.blocks, max(self._cache.available_blocks(rank), 0))
        return max(headroom, kept + OVERTAKING_HEADROOM_BLOCKS * self._cache.groups)

    def _headroom_blocks(self, rank: int) -> int:
        """Blocks to leave free when a request of the rank is admitted, so that none is preempted soon after (thrash).

        A request is admitted with the blocks of all its tokens, so it needs at most one more in the next 16 steps: one
        in each group of layers. Headroom is that for each running request of this class, including the new one, and for
        each request above that would outgrow the reserve of its class. The classes below can be preempted. A request
        that runs alone needs no headroom.
        """
        running = self._requests.running.ranks
        each = self._cache.groups
        above = sum(max(0, len(running[other]) * each - self._cache.unused_reserve(other)) for other in range(rank))
        others = above + len(running[rank]) * each
        return others + each if others else 0
