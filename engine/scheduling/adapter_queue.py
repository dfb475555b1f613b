"""Requests that wait for their adapter, outside of the queues in which requests wait for capacity.

A request in such a queue, or running, leases the slot of its adapter, so that whatever is planned can be computed. It
keeps the lease through a preemption, and gives it back when it is paused or ends. One whose adapter has no slot is
parked here, and delays no other request; the adapter is loaded into the next slot without leases.

**No adapter starves.** Where every slot is leased, the parked request that is first in order names the adapter with the
fewest leases, which is drained: requests of its class and below that arrive for it are parked, too, so that its leases
end with its running answers. **Classes.** Where every request that leases a slot is of a class below, it takes the slot
at once: those of them that wait are parked, and those that run are preempted first.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from engine.adapters.pool import AdapterPool
from engine.adapters.source import AdapterSource
from engine.request import Request
from engine.scheduling.order import order_key


@dataclass(frozen=True, slots=True)
class AdapterLoad:
    """An adapter to be loaded into a slot, which no request leases."""

    source: AdapterSource
    slot: int


@dataclass(frozen=True, slots=True)
class AdapterStats:
    """The slots of adapters, and totals since the model was loaded. `waiting`: requests whose adapter is not
    resident."""

    slots: int
    resident: int
    waiting: int
    loads_total: int
    evictions_total: int
    failures_total: int
    load_seconds_total: float = 0.0


@dataclass(frozen=True, slots=True)
class _Parked:
    request: Request
    since_ns: int


class AdapterQueue:
    """The leases of a model's requests, and those that wait for one."""

    def __init__(self, slots: int) -> None:
        self.pool = AdapterPool(slots)
        self.changed = False
        """Whether something has changed since the slots were assigned last."""
        self._parked: dict[str, dict[str, _Parked]] = {}
        """By digest, then by the request's id."""
        self._holders: dict[str, dict[str, Request]] = {}
        """By digest and id: the requests that lease it."""
        self._drained: dict[str, str] = {}
        """Adapters that are drained: by digest, that of the parked request."""

    @property
    def waits(self) -> bool:
        """Whether a request is parked."""
        return bool(self._parked)

    def __len__(self) -> int:
        """Parked requests."""
        return sum(map(len, self._parked.values()))

    def __iter__(self) -> Iterator[Request]:
        return (parked.request for parked_ones in self._parked.values() for parked in parked_ones.values())

    def take(self, request: Request) -> bool:
        """Lease the slot of a request's adapter. False: it is parked, and its wait counts from `waiting_since_ns`. A
        request without an adapter needs no lease."""
        source = request.adapter
        if source is None or request.adapter_slot is not None:
            return True
        assert self.pool.slots, f"{request.id} has an adapter, and the model has no slots"
        if not self.pool.is_resident(source.digest) or self._is_held_back(request, source.digest):
            self.park(request, request.waiting_since_ns)
            return False
        request.adapter_slot = self.pool.lease(source.digest)
        self._holders.setdefault(source.digest, {})[request.id] = request
        return True

    def park(self, request: Request, since_ns: int) -> None:
        """Let a request without a lease wait here. `since_ns`: the beginning of its wait."""
        assert request.adapter is not None, f"{request.id} has no adapter"
        assert request.adapter_slot is None, f"{request.id} has a lease"
        self._parked.setdefault(request.adapter.digest, {})[request.id] = _Parked(request, since_ns)
        self.changed = True

    def give_back(self, request: Request) -> None:
        """End a request's lease, or its wait for one."""
        source = request.adapter
        if source is None:
            return
        if request.adapter_slot is None:
            self._unpark(request, source.digest)
            return
        self.pool.release(source.digest)
        del self._holders[source.digest][request.id]
        if not self._holders[source.digest]:
            del self._holders[source.digest]
        request.adapter_slot = None
        self.changed = True

    def is_parked(self, request: Request) -> bool:
        """Whether the request waits here."""
        return request.adapter is not None and request.id in self._parked.get(request.adapter.digest, ())

    def released(self) -> list[Request]:
        """The parked requests that have their lease now, in order. They go to their queues."""
        ready = [
            parked.request
            for digest, parked_ones in self._parked.items()
            if self.pool.is_resident(digest)
            for parked in parked_ones.values()
            if not self._is_held_back(parked.request, digest)
        ]
        for request in ready:
            assert request.adapter is not None, f"{request.id} waits for no adapter"
            self._unpark(request, request.adapter.digest)
            leased = self.take(request)
            assert leased, f"{request.id} is parked again"
        return sorted(ready, key=order_key)

    def firsts(self) -> list[Request]:
        """The first parked request of each adapter without a slot, in order."""
        firsts = [
            min((parked.request for parked in parked_ones.values()), key=order_key)
            for digest, parked_ones in self._parked.items()
            if digest not in self.pool
        ]
        return sorted(firsts, key=order_key)

    def claim(self, first: Request) -> AdapterLoad | None:
        """The load to begin for a parked request, into a slot without leases. None: there is none."""
        assert first.adapter is not None, f"{first.id} waits for no adapter"
        slot = self.pool.claim(first.adapter.digest)
        return None if slot is None else AdapterLoad(first.adapter, slot)

    def outranked_by(self, first: Request) -> list[Request]:
        """The requests that lease one slot, all of which are of classes below that of `first`, the last in order first;
        of the slot with the fewest. Empty: there is no such slot."""
        below = [
            digest
            for digest, holders in self._holders.items()
            if all(holder.rank > first.rank for holder in holders.values())
        ]
        victim = min((digest for digest in self.pool if digest in below), key=self.pool.leases, default=None)
        return [] if victim is None else sorted(self._holders[victim].values(), key=order_key, reverse=True)

    def drain_for(self, first: Request) -> None:
        """Choose the adapter whose slot a parked request gets once its leases have ended: of those that are not drained
        yet the one with the fewest, of several the least recently used."""
        assert first.adapter is not None, f"{first.id} waits for no adapter"
        if first.adapter.digest in self._drained.values():
            return
        among = [digest for digest in self.pool if digest in self._holders and digest not in self._drained]
        victim = min(among, key=self.pool.leases, default=None)
        if victim is not None:
            self._drained[victim] = first.adapter.digest

    def end_drains(self) -> None:
        """Drain no adapter any more that has lost its slot, or whose slot no request waits for."""
        self._drained = {
            victim: waiting for victim, waiting in self._drained.items() if self._is_needed(victim, waiting)
        }

    def overdue(self, before_ns: int) -> list[Request]:
        """The requests that were parked before this time, in order."""
        late = [
            parked.request
            for parked_ones in self._parked.values()
            for parked in parked_ones.values()
            if parked.since_ns < before_ns
        ]
        return sorted(late, key=order_key)

    def waiting_for(self, digest: str) -> list[Request]:
        """The requests that are parked for an adapter, in order."""
        return sorted((parked.request for parked in self._parked.get(digest, {}).values()), key=order_key)

    def stats(self) -> AdapterStats:
        """The metrics. Thread-safe."""
        pool = self.pool
        waiting = sum(len(parked_ones) for parked_ones in list(self._parked.values()))
        return AdapterStats(
            pool.slots, pool.resident, waiting, pool.loads_total, pool.evictions_total, pool.failures_total
        )

    def check(self, leasing: Iterable[Request]) -> None:
        """Assert the invariants. `leasing`: the requests that wait for capacity or run."""
        leases: dict[str, int] = {}
        for request in leasing:
            assert (request.adapter_slot is None) == (request.adapter is None), f"{request.id} has no lease"
            if request.adapter is not None:
                leases[request.adapter.digest] = leases.get(request.adapter.digest, 0) + 1
        self.pool.check(leases)
        assert leases == {digest: len(holders) for digest, holders in self._holders.items()}, "leases are miscounted"
        for request in self:
            assert request.adapter_slot is None, f"{request.id} is parked with a slot"
        for victim, waiting in self._drained.items():
            assert self._is_needed(victim, waiting) or self.changed, f"adapter {victim} is drained for no request"

    def _unpark(self, request: Request, digest: str) -> None:
        parked_ones = self._parked.get(digest, {})
        if parked_ones.pop(request.id, None) is not None:
            self.changed = True
        if not parked_ones:
            self._parked.pop(digest, None)

    def _is_held_back(self, request: Request, digest: str) -> bool:
        """Whether a request must not lease an adapter because it is drained for one of its class or above."""
        waiting = self._drained.get(digest)
        firsts = self._parked.get(waiting, {}) if waiting is not None else {}
        return any(parked.request.rank <= request.rank for parked in firsts.values())

    def _is_needed(self, victim: str, waiting: str) -> bool:
        return victim in self.pool and waiting in self._parked and waiting not in self.pool
