"""Who gives way: to a running request that needs a block, and to a waiting one of a higher class."""

from collections import Counter
from collections.abc import Sequence

from engine.memory.kv_cache import BlockDemand, KVCacheManager
from engine.request import Request
from engine.scheduling.order import OrderedQueue
from engine.scheduling.stopping import ends_in_flight

MAX_PREEMPTIONS = 3
"""A request that was preempted so often is taken again only when nothing else is left."""


def is_immune(request: Request, peers: OrderedQueue) -> bool:
    """The oldest of its class and the often preempted are the last to be taken, so that each of them gets on."""
    return request.preemptions >= MAX_PREEMPTIONS or request is peers[0]


def victim_of_growth(running: Sequence[OrderedQueue], rank: int) -> Request:
    """The request to preempt so that those of the rank can grow: of the lowest class that runs, the last in order.

    `running` has one queue a rank. Never the only one that runs: the window of its class fits what the class can
    have. Inside the lowest class, one that is immune only when all are.
    """
    assert sum(map(len, running)) > 1, "a request that runs alone has to be preempted"
    peers = next(queue for queue in reversed(running[rank:]) if len(queue))
    last_first = [peers[index] for index in range(len(peers) - 1, -1, -1)]
    return next((request for request in last_first if not is_immune(request, peers)), last_first[0])


def victims_for_waiting(
    cache: KVCacheManager,
    running: Sequence[OrderedQueue],
    newcomer: Request,
    demand: BlockDemand,
    *,
    missing_blocks: int,
    missing_slots: int,
) -> list[Request]:
    """Requests of strictly lower classes whose leaving lets the newcomer in; none if that of all would not.

    In order: those that are not immune, of the lowest class, that free the most blocks, have computed least.
    Blocks are freed that no one else holds; two victims can free what they share. One that ends in flight is left to:
    it gives everything back when that has landed.
    """
    candidates: list[tuple[bool, int, int, int, int, Request]] = []
    nothing: Counter[int] = Counter()
    for queue in running[newcomer.rank + 1 :]:
        for request in queue:
            if request is newcomer.fork_of or ends_in_flight(request):
                continue
            freed = len(cache.freed_by(request, demand, nothing)) if missing_blocks else len(request.block_table)
            immune = is_immune(request, queue)
            candidates.append((immune, -request.rank, -freed, request.computed, -request.arrival, request))
    candidates.sort(key=lambda candidate: candidate[:5])

    given_back: Counter[int] = Counter()
    victims: list[Request] = []
    for *_, request in candidates:
        victims.append(request)
        missing_slots -= 1
        if missing_blocks > 0:
            missing_blocks -= len(cache.freed_by(request, demand, given_back))
            given_back.update(request.block_table)
        if missing_blocks <= 0 and missing_slots <= 0:
            return victims
    return []
