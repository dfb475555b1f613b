"""Who gets in: room for a waiting request, if need be after requests of lower classes gave way.

**Nobody overtakes one that waits for capacity.** A head for which no preemption would make the room waits for what its
own class and those above give back; whatever came in before it, it would wait for, too. So it keeps out all behind it
and all classes below.

**One that waits for its tenant's budget of preemptions is held back, and may be passed, at no cost to it.** Others did
not use that budget up. Whoever comes in past it, be it of another tenant of its class or of a class below, makes its
room by preemptions of its own: of what is free, as much is kept as those that are held back need, and so they are no
more short of slots or blocks than before. One passes in a step, so that they are asked again before the next does.

It is served in the end. Each that passes takes the place of at least one of a class strictly below its own, and nobody
comes in there meanwhile but in the same way; so there is an end to those that pass. From then on all that running
requests give back stays free, until it is enough, if the budget is not there before.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from engine.config import SchedulerConfig
from engine.memory.kv_cache import BlockDemand, KVCacheManager
from engine.memory.prefix_hits import PrefixHits
from engine.request import Request
from engine.scheduling.preemption_budget import PreemptionBudget
from engine.scheduling.roster import Roster
from engine.scheduling.victims import victims_for_waiting

GROWTH_OF_ONE_THAT_PASSES = 2
"""Blocks beyond its own: one for it to grow by, and one for a head that was alone and now is not."""


class Refusal(Enum):
    """Why a waiting request does not get in: nothing would make the room, or its tenant may not have it made now."""

    CAPACITY = auto()
    BUDGET = auto()


@dataclass(slots=True)
class HeldBack:
    """The heads that were refused for their tenants' budget in this step, and what they need of what is free.

    `tenants` are those of the class that is planned now; the needs are of all classes planned so far.
    """

    tenants: list[str] = field(default_factory=list)
    slots: int = 0
    blocks: int = 0
    hits: list[PrefixHits] = field(default_factory=list)
    """Cached blocks that are theirs to share: when a victim lets go of one, nothing is gained for them."""


class Admission:
    """Says what it takes to admit a request. Knows what each tenant's requests have had preempted."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager, roster: Roster) -> None:
        self._cache = cache
        self._roster = roster
        self._preemption_budget = PreemptionBudget(config.tenant_preemptions, config.preemption_window_steps)

    def make_room(
        self, request: Request, demand: BlockDemand, step: int, held_back: HeldBack
    ) -> list[Request] | Refusal:
        """Have a slot and blocks for a waiting request, beside what is kept for those that are held back.

        Returns those that were preempted for it. Nobody is preempted in vain: all that it takes is known before the
        first victim goes. O(running requests).
        """
        rank = request.rank
        kept_slots = min(held_back.slots, max(self._roster.slot_room(rank), 0))
        missing_blocks = self._cache.shortage(request, demand, self._blocks_to_leave(rank, held_back))
        missing_slots = max(0, 1 + kept_slots - self._roster.slot_room(rank))
        if not missing_blocks and not missing_slots:
            return []
        running = self._roster.running.ranks
        if not any(map(len, running[rank + 1 :])):
            return Refusal.CAPACITY
        if missing_blocks and self._cache.returning_blocks:
            return Refusal.CAPACITY  # nobody gives way for blocks that are about to be free
        most = self._preemption_budget.left(request.tenant, step)
        leaving = self._cache.leaving(rank, [demand.hits, *held_back.hits])
        victims = victims_for_waiting(
            leaving, running, request, missing_blocks=missing_blocks, missing_slots=missing_slots, most=most
        )
        if not victims:
            return Refusal.CAPACITY
        if len(victims) > most:
            return Refusal.BUDGET
        self._preemption_budget.spend(request.tenant, step, len(victims))
        for victim in victims:
            self._roster.preempt(victim, cause=rank)
        if missing_blocks and self._cache.returning_blocks:
            return Refusal.CAPACITY  # they had more than is taken back in a step: it comes in when that is done
        return victims

    def hold_back(self, request: Request, demand: BlockDemand, held_back: HeldBack) -> None:
        """Keep for a request that was refused what it needs of what is free."""
        held_back.tenants.append(request.tenant)
        held_back.slots += 1
        held_back.hits.append(demand.hits)
        room = max(self._cache.room(request.rank), 0)
        held_back.blocks += self._cache.shortage(request, demand, room + self._growth_blocks(request.rank))

    def _blocks_to_leave(self, rank: int, held_back: HeldBack) -> int:
        growth = self._growth_blocks(rank)
        if not held_back.slots:
            return growth
        kept = min(held_back.blocks, max(self._cache.room(rank), 0))
        return max(growth, kept + GROWTH_OF_ONE_THAT_PASSES)

    def _growth_blocks(self, rank: int) -> int:
        """The blocks to leave when one of the rank is admitted, so that nobody gives way soon after: no thrash.

        A request gets the blocks of all its tokens at once, so it grows by one in 16 steps at most. One for each
        that runs in this class, the newcomer included, and for each above that would outgrow the reserve of its
        class. The classes below can give way. A request alone needs nothing.
        """
        running = self._roster.running.ranks
        above = sum(max(0, len(running[other]) - self._cache.unused_reserve(other)) for other in range(rank))
        others = above + len(running[rank])
        return others + 1 if others else 0
