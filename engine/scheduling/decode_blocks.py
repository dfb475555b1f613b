"""KV blocks for the running requests, allocated before any row of a step is planned."""

from collections.abc import Sequence

from engine.config import BLOCK_TOKENS
from engine.memory.kv_cache import KVCacheManager
from engine.request import Request
from engine.scheduling.micro_batches import awaits_token
from engine.scheduling.request_table import RequestTable
from engine.scheduling.stopping import ends_in_flight
from engine.scheduling.victims import victim_for_decode


def allocate_decode_blocks(requests: RequestTable, cache: KVCacheManager, *, ahead: bool = True) -> int | None:
    """Allocate a block to each running request whose last block is full. `ahead`: also for a token that a step in
    flight samples; otherwise it is allocated when the token is known.

    Returns the number of classes, from the highest, that may admit requests in this step. None: ask again when the
    oldest step in flight is complete, or the copier of the second pool has reported.

    The demand of all requests is known and met before the first row is planned, so no allocation is ever undone. Where
    it cannot be met, requests of the lowest class are preempted, and neither that class nor one below admits requests
    in the same step. Preemption waits for blocks that are being freed: those of requests that finish in a step in
    flight (the result is None), those on the release queue, and those that are lent to be copied (None, too). A request
    that runs alone also waits for blocks that are being fetched.
    """
    open_ranks = len(requests.ranks)
    while True:
        growing = [
            request
            for request in requests.running
            if request.scheduled >= len(request.block_table) * BLOCK_TOKENS
            and not (request.is_allocating or ends_in_flight(request))
            and (ahead or not awaits_token(request))
        ]
        if not growing:
            return open_ranks
        lacking = _lacking_rank(requests.ranks, cache, growing)
        if lacking is None:
            break
        if cache.returning_blocks:
            cache.hurry_return()
            continue
        if any(map(ends_in_flight, requests.running)):
            return None
        alone = len(requests.running) == 1
        if cache.lent_blocks or (alone and cache.fetching_blocks):
            return None
        victim = victim_for_decode(requests.running.ranks, lacking)
        open_ranks = min(open_ranks, victim.rank)
        requests.preempt(victim, cause=lacking)
    for request in growing:
        grown = cache.grow(request, request.scheduled + 1)
        assert grown, "the demand for blocks was met and is not"
    return open_ranks


def _lacking_rank(ranks: range, cache: KVCacheManager, growing: Sequence[Request]) -> int | None:
    """The highest rank whose requests cannot all grow after those of the ranks above have."""
    demand = [0] * len(ranks)
    for request in growing:
        demand[request.rank] += cache.blocks_needed(request, request.scheduled + 1)
    above = 0
    for rank in ranks:
        # blocks that the ranks above take from their own reserve were never available to this rank
        within = sum(min(demand[other], cache.unused_reserve(other)) for other in range(rank))
        if demand[rank] and above - within + demand[rank] > cache.available_blocks(rank):
            return rank
        above += demand[rank]
    return None
