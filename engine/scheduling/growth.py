"""Blocks for what runs, before any row of a step is made."""

from collections.abc import Sequence

from engine.config import BLOCK_TOKENS
from engine.memory.kv_cache import KVCacheManager
from engine.request import Request
from engine.scheduling.roster import Roster
from engine.scheduling.stopping import ends_in_flight
from engine.scheduling.victims import victim_of_growth


def grow_running(roster: Roster, cache: KVCacheManager) -> int | None:
    """Give each running request that fills its last block another; returns how many ranks may be admitted.

    The demand of all is known, and met, before the first row is made, so that nothing is unwound. Where it is
    not, those in the lowest class give way, and nobody of that class or below is admitted in the same step. But nobody
    gives way while one who ends in flight is about to give its blocks back: None, ask again when that has landed. Nor
    while blocks are returning.
    """
    open_ranks = len(roster.ranks)
    while True:
        growing = [
            request
            for request in roster.running
            if request.scheduled >= len(request.block_table) * BLOCK_TOKENS
            and not (request.boards or ends_in_flight(request))
        ]
        if not growing:
            return open_ranks
        lacking = _lacking_rank(roster.ranks, cache, growing)
        if lacking is None:
            break
        if cache.returning_blocks:
            cache.hurry_return()
            continue
        if any(map(ends_in_flight, roster.running)):
            return None
        victim = victim_of_growth(roster.running.ranks, lacking)
        open_ranks = min(open_ranks, victim.rank)
        roster.preempt(victim, cause=lacking)
    for request in growing:
        grown = cache.grow(request, request.scheduled + 1)
        assert grown, "the demand for blocks was met and is not"
    return open_ranks


def _lacking_rank(ranks: range, cache: KVCacheManager, growing: Sequence[Request]) -> int | None:
    """The highest rank whose requests cannot all grow, once those of the ranks above have."""
    demand = [0] * len(ranks)
    for request in growing:
        demand[request.rank] += cache.blocks_needed(request, request.scheduled + 1)
    above = 0
    for rank in ranks:
        # what the ranks above take of their own reserve was never within reach
        within = sum(min(demand[other], cache.unused_reserve(other)) for other in range(rank))
        if demand[rank] and above - within + demand[rank] > cache.room(rank):
            return rank
        above += demand[rank]
    return None
