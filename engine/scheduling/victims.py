"""Who gives way when the running requests need more blocks than are free."""

from engine.request import Request
from engine.scheduling.order import OrderedQueue


def choose_victim(running: OrderedQueue) -> Request:
    """The running request to preempt: the last in order, so that the first always gets on.

    Never the only one: a request's window is no longer than the pool, so one that is alone always has room.
    """
    assert len(running) > 1, "a request that runs alone has to be preempted"
    return running[-1]
