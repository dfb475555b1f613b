"""Which requests are preempted: for a running request that needs a block, or for a waiting one of a higher class."""

from collections.abc import Sequence

from engine.memory.preemption_gain import PreemptionGain
from engine.memory.window_groups import num_held_blocks
from engine.request import Request
from engine.scheduling.order import OrderedQueue
from engine.scheduling.stopping import ends_in_flight

MAX_PREEMPTIONS = 3
"""A request that was preempted this many times is preempted again only when nothing else is left."""


def is_immune(request: Request, peers: OrderedQueue) -> bool:
    """Whether the request is preempted last, so that it makes progress: the oldest of its class, or one that was
    preempted `MAX_PREEMPTIONS` times."""
    return request.preemptions >= MAX_PREEMPTIONS or request is peers[0]


def victim_for_decode(running: Sequence[OrderedQueue], rank: int) -> Request:
    """The request to preempt so that the requests of the rank get their next blocks: the last in order of the lowest
    class that runs. Within that class, an immune request only where all are.

    `running`: one queue per rank. The only running request is never a victim: its class's window fits the blocks that
    the class can have.
    """
    assert sum(map(len, running)) > 1, "a request that runs alone has to be preempted"
    peers = next(queue for queue in reversed(running[rank:]) if len(queue))
    last_first = [peers[index] for index in range(len(peers) - 1, -1, -1)]
    return next((request for request in last_first if not is_immune(request, peers)), last_first[0])


def victims_for_waiting(
    gain: PreemptionGain,
    running: Sequence[OrderedQueue],
    newcomer: Request,
    *,
    missing_blocks: int,
    missing_slots: int,
    max_victims: int,
) -> list[Request]:
    """Requests of strictly lower classes to preempt so that `newcomer` can be admitted; none if all of them together
    would not free enough. Victims of classes that yield are not counted. Where it takes more than `max_victims` others,
    the first ones up to number `max_victims + 1` of the others.

    Order: classes that yield first, then not immune ones, lowest class, most blocks freed, fewest tokens computed. A
    block is freed when no other request holds it, so two victims can free a block that they share. A request that ends
    in flight is never a victim: it frees everything when its step completes.

    O(running requests), plus a walk over the blocks of the victims where shared blocks decide.
    """
    if gain.upper_bound < missing_blocks:
        return []
    candidates: list[tuple[bool, bool, int, int, int, int, Request]] = []
    ending_blocks = 0
    yields_any = any(len(queue) and queue[0].service_class.yields for queue in running[newcomer.rank + 1 :])
    counts_blocks = missing_blocks > 0 and (max_victims > 0 or yields_any)  # otherwise the order does not matter
    for queue in running[newcomer.rank + 1 :]:
        for request in queue:
            if ends_in_flight(request):
                ending_blocks += num_held_blocks(request)
                continue
            freed = gain.of_request(request) if counts_blocks else num_held_blocks(request)
            immune = is_immune(request, queue)
            keeps = not request.service_class.yields
            candidates.append((keeps, immune, -request.rank, -freed, request.computed, -request.arrival, request))
    if len(candidates) < missing_slots:
        return []
    candidates.sort(key=lambda candidate: candidate[:6])

    victims: list[Request] = []
    charged = 0
    for keeps, *_, request in candidates:
        victims.append(request)
        gain.add(request)
        charged += keeps
        if charged > max_victims:  # would all candidates be enough?
            return victims if gain.upper_bound - ending_blocks >= missing_blocks else []
        if len(victims) >= missing_slots and gain.reaches(missing_blocks):
            return victims
    return []
