"""Who gives way: to a running request that needs a block, and to a waiting one of a higher class."""

from collections.abc import Sequence

from engine.memory.leaving import Leaving
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
    leaving: Leaving,
    running: Sequence[OrderedQueue],
    newcomer: Request,
    *,
    missing_blocks: int,
    missing_slots: int,
    most: int,
) -> list[Request]:
    """Requests of strictly lower classes whose leaving lets the newcomer in; none if that of all would not. Where it
    takes more than `most` of them, the first of those, one more than that.

    In order: those that are not immune, of the lowest class, that free the most blocks, have computed least.
    Blocks are freed that no one else holds; two victims can free what they share. One that ends in flight is left to:
    it gives everything back when that has landed.

    O(running), and a walk over the blocks of `most` requests where it is what they share that decides.
    """
    if leaving.most_of_all < missing_blocks:
        return []
    candidates: list[tuple[bool, int, int, int, int, Request]] = []
    ending_blocks = 0
    counts_blocks = missing_blocks > 0 and most > 0  # else whoever comes first is one too many
    for queue in running[newcomer.rank + 1 :]:
        for request in queue:
            if ends_in_flight(request):
                ending_blocks += len(request.block_table)
                continue
            freed = leaving.of_one(request) if counts_blocks else len(request.block_table)
            immune = is_immune(request, queue)
            candidates.append((immune, -request.rank, -freed, request.computed, -request.arrival, request))
    if len(candidates) < missing_slots:
        return []
    candidates.sort(key=lambda candidate: candidate[:5])

    victims: list[Request] = []
    for *_, request in candidates:
        victims.append(request)
        leaving.add(request)
        if len(victims) > most:  # would all of them do?
            return victims if leaving.most_of_all - ending_blocks >= missing_blocks else []
        if len(victims) >= missing_slots and leaving.reaches(missing_blocks):
            return victims
    return []
