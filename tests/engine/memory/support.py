"""Check and change in one call, as the planner does both."""

from engine.memory import BlockCopy, KVCacheManager
from engine.request import Request


def admit(cache: KVCacheManager, request: Request, keep_free: int = 0) -> bool:
    """Admit the request if that leaves `keep_free` blocks available to its class; False with nothing changed if not."""
    demand = cache.demand(request)
    if cache.shortage(request, demand, keep_free):
        return False
    cache.admit(request, demand)
    return True


def fork(cache: KVCacheManager, parent: Request, child: Request, keep_free: int = 0) -> list[BlockCopy] | None:
    """The same for a fork; None with nothing changed."""
    demand = cache.demand(child, parent)
    return None if cache.shortage(child, demand, keep_free) else cache.fork(parent, child, demand)
