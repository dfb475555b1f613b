"""The slots of adapters in a model's memory: which adapter each holds, and its leases. Knows no requests and no files.

A slot is empty, is being filled, or holds an adapter. Requests lease the slot of their adapter. A slot without leases
keeps its adapter until another needs it, the one least recently used first.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class _Held:
    """An adapter's slot, whether it is filled, and the requests that use it."""

    slot: int
    resident: bool = False
    leases: int = 0


class AdapterPool:
    """`slots`: their number. Adapters are known by digest. All counters only grow."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.loads_total = self.evictions_total = self.failures_total = 0
        self._free = list(range(slots - 1, -1, -1))
        self._held: dict[str, _Held] = {}
        """From the least to the most recently used."""

    def __contains__(self, digest: str) -> bool:
        """Whether the adapter has a slot, filled or not."""
        return digest in self._held

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[str]:
        """The adapters that have a slot, the least recently used first."""
        return iter(self._held)

    def is_resident(self, digest: str) -> bool:
        """Whether the adapter can be used."""
        held = self._held.get(digest)
        return held is not None and held.resident

    def leases(self, digest: str) -> int:
        """Requests that use the adapter."""
        held = self._held.get(digest)
        return 0 if held is None else held.leases

    def lease(self, digest: str) -> int:
        """Use a resident adapter: its slot, which it keeps until `release`."""
        held = self._held[digest]
        assert held.resident, f"adapter {digest} is not resident"
        held.leases += 1
        self._touch(digest)
        return held.slot

    def release(self, digest: str) -> None:
        """End one lease."""
        held = self._held[digest]
        assert held.leases > 0, f"adapter {digest} is not leased"
        held.leases -= 1
        self._touch(digest)

    def claim(self, digest: str) -> int | None:
        """A slot for an adapter that has none: an empty one, or that of the least recently used adapter without
        leases. None: all are leased. `loaded` or `fail` follows."""
        assert digest not in self._held, f"adapter {digest} has a slot"
        if not self._free:
            idle = next((other for other, held in self._held.items() if held.resident and not held.leases), None)
            if idle is None:
                return None
            self._free.append(self._held.pop(idle).slot)
            self.evictions_total += 1
        self._held[digest] = held = _Held(self._free.pop())
        return held.slot

    def loaded(self, digest: str) -> None:
        """The slot is filled."""
        held = self._held[digest]
        assert not held.resident, f"adapter {digest} is loaded twice"
        held.resident = True
        self.loads_total += 1
        self._touch(digest)

    def fail(self, digest: str) -> None:
        """The slot could not be filled; it is empty again."""
        held = self._held.pop(digest)
        assert not held.resident, f"adapter {digest} fails after it was loaded"
        self._free.append(held.slot)
        self.failures_total += 1

    @property
    def resident(self) -> int:
        """Slots that are filled."""
        return sum(held.resident for held in self._held.values())

    def check(self, leases: dict[str, int]) -> None:
        """Assert the invariants. `leases`: by digest, counted by those that have them."""
        slots = [*self._free, *(held.slot for held in self._held.values())]
        assert sorted(slots) == list(range(self.slots)), f"slots of adapters: {slots}"
        counted = {digest: held.leases for digest, held in self._held.items() if held.leases}
        assert counted == {digest: count for digest, count in leases.items() if count}, "leases are miscounted"
        for digest, held in self._held.items():
            assert held.resident or not held.leases, f"adapter {digest} is used before it is loaded"

    def _touch(self, digest: str) -> None:
        self._held[digest] = self._held.pop(digest)
