"""Memory that a gateway needs of its machine."""

import os
from dataclasses import dataclass

from engine.memory.kv_memory import host_budget
from gateway.config.settings import Settings

PROCESS_BYTES = 2**30
"""Memory of the process besides weights and KV: libraries, the embedded ClickHouse, requests in flight."""
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class HostNeed:
    """Bytes of weights and of KV, and of the machine's whole memory."""

    weights_bytes: int
    kv_bytes: int
    total_bytes: int

    @property
    def fits(self) -> bool:
        return self.weights_bytes + self.kv_bytes + PROCESS_BYTES <= self.total_bytes

    def __str__(self) -> str:
        return (
            f"{self.weights_bytes / _GIB:.1f} GiB of weights, {self.kv_bytes / _GIB:.1f} of KV and "
            f"{PROCESS_BYTES / _GIB:.0f} for the process, of {self.total_bytes / _GIB:.1f}"
        )


def host_need(settings: Settings, weights_bytes: int, models: int) -> HostNeed:
    """Memory for `models` models with these weights on this machine's CPU."""
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = (os.sysconf(name) * page for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    kv = settings.kv_cache_bytes * models if settings.kv_cache_bytes else host_budget(free, 1).kv_bytes
    return HostNeed(weights_bytes, kv, total)
