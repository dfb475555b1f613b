"""Who gets in: room for a waiting request, if need be after requests of lower classes gave way."""

from engine.config import SchedulerConfig
from engine.memory.kv_cache import BlockDemand, KVCacheManager
from engine.request import Request
from engine.scheduling.preemption_budget import PreemptionBudget
from engine.scheduling.roster import Roster
from engine.scheduling.victims import victims_for_waiting


class Admission:
    """Says what it takes to admit a request. Knows what each tenant's requests have had preempted."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager, roster: Roster) -> None:
        self._cache = cache
        self._roster = roster
        self._preemption_budget = PreemptionBudget(config.tenant_preemptions, config.preemption_window_steps)

    def make_room(self, request: Request, demand: BlockDemand, step: int) -> list[Request] | None:
        """Have a slot and blocks for a waiting request, after those that are returned were preempted; None: no room.

        Nobody is preempted in vain: all that it takes is known before the first victim goes.
        """
        rank = request.rank
        missing_blocks = self._cache.shortage(request, demand, self._growth_blocks(rank))
        missing_slots = max(0, 1 - self._roster.slots.room(rank))
        if not missing_blocks and not missing_slots:
            return []
        running = self._roster.running.ranks
        most = self._preemption_budget.left(request.tenant, step)
        if most <= 0 or not any(map(len, running[rank + 1 :])):
            return None
        victims = victims_for_waiting(
            self._cache,
            running,
            request,
            demand,
            missing_blocks=missing_blocks,
            missing_slots=missing_slots,
            most=most,
        )
        if not victims:
            return None
        self._preemption_budget.spend(request.tenant, step, len(victims))
        for victim in victims:
            self._roster.preempt(victim, cause=rank)
        return victims

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
