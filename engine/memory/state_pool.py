"""The state slots of a model with recurrent layers: uses, snapshots by hash, and their order of eviction."""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from enum import Enum, auto


class StateUse(Enum):
    """The use of a slot.

    `FREE`: nothing. `RUNNING`: the state of one running sequence, which each of its rows advances. `PENDING`: a row
    that is planned or in flight saves a state there. `SNAPSHOT`: a saved state, found by hash.
    """

    FREE = auto()
    RUNNING = auto()
    PENDING = auto()
    SNAPSHOT = auto()


class StatePool:
    """`num_slots` slots, each for the recurrent state of one sequence at one position. Knows no requests.

    At most `max_running` slots are running ones, and those can always be taken: what is free or a snapshot is never
    less than what running sequences may still take. All others hold snapshots, as long as they are not evicted.

    A snapshot is published under the hash of the last block of its prefix. That hash covers the whole prefix and the
    tenant's salt (see `hashing`), so snapshots are as separate as cached blocks. A snapshot is copied to a running slot
    and never shared with one, so it needs no reference count.

    Evicted is the least recently used snapshot; of a tenant that has `tenant_slots` snapshots, its own.
    """

    def __init__(self, num_slots: int, max_running: int) -> None:
        if not 1 <= max_running <= num_slots:
            raise ValueError(f"{num_slots} state slots for {max_running} running sequences")
        self.num_slots = num_slots
        self.max_running = max_running
        self.tenant_slots = num_slots
        self.changes_total = 0
        """Snapshots published and evicted so far."""
        self.evictions_total = 0
        self._use = [StateUse.FREE] * num_slots
        self._counts = dict.fromkeys(StateUse, 0) | {StateUse.FREE: num_slots}
        self._free = list(range(num_slots - 1, -1, -1))
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()
        """Snapshots by hash, least recently used first."""
        self._tenant_of: dict[bytes, str] = {}
        self._of_tenant: dict[str, OrderedDict[bytes, None]] = {}

    def count(self, use: StateUse) -> int:
        """The number of slots of a use."""
        return self._counts[use]

    @property
    def counts(self) -> Mapping[StateUse, int]:
        """The number of slots of each use, at one moment: they add up, on any thread."""
        return self._counts

    def use_of(self, slot: int) -> StateUse:
        return self._use[slot]

    @property
    def hashes(self) -> Collection[bytes]:
        """The hashes of all snapshots, least recently used first."""
        return self._slot_of.keys()

    def find(self, block_hash: bytes) -> int | None:
        """The snapshot of the prefix that ends with this block."""
        return self._slot_of.get(block_hash)

    def touch(self, block_hash: bytes) -> None:
        """Make a snapshot the most recently used one."""
        self._slot_of.move_to_end(block_hash)
        self._of_tenant[self._tenant_of[block_hash]].move_to_end(block_hash)

    def take_running(self) -> int:
        """A slot for a sequence that begins to run. Its content is arbitrary; that of the snapshot used last, if no
        other slot was left."""
        assert self.count(StateUse.RUNNING) < self.max_running, "more sequences run than have states"
        if not self._free:
            self.evict(next(iter(self._slot_of)))
        return self._take(StateUse.RUNNING)

    def take_pending(self, tenant: str) -> int | None:
        """A slot to save a state of the tenant in; None if all are needed by running sequences."""
        needed = self.max_running - self.count(StateUse.RUNNING)
        if self.count(StateUse.FREE) + self.count(StateUse.SNAPSHOT) <= needed:
            return None
        if not self._free:
            own = self._of_tenant.get(tenant, ())
            self.evict(next(iter(own if len(own) >= self.tenant_slots else self._slot_of)))
        return self._take(StateUse.PENDING)

    def publish(self, slot: int, block_hash: bytes, tenant: str) -> None:
        """Make a pending slot the snapshot of a hash. It is freed where there is one already."""
        if block_hash in self._slot_of:
            self.touch(block_hash)
            self.give_back(slot, StateUse.PENDING)
            return
        self._change(slot, StateUse.PENDING, StateUse.SNAPSHOT)
        self._slot_of[block_hash] = slot
        self._tenant_of[block_hash] = tenant
        self._of_tenant.setdefault(tenant, OrderedDict())[block_hash] = None
        self.changes_total += 1

    def give_back(self, slot: int, use: StateUse) -> None:
        """Free a slot of this use."""
        self._change(slot, use, StateUse.FREE)
        self._free.append(slot)

    def evict(self, block_hash: bytes) -> None:
        """Free the snapshot of a hash, if there is one."""
        slot = self._slot_of.pop(block_hash, None)
        if slot is None:
            return
        tenant = self._tenant_of.pop(block_hash)
        del self._of_tenant[tenant][block_hash]
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
        self.give_back(slot, StateUse.SNAPSHOT)
        self.changes_total += 1
        self.evictions_total += 1

    def check(self) -> None:
        """Assert that every slot has one use, that all counts and indices are right, and that running sequences can
        have their slots."""
        for use in StateUse:
            assert self._use.count(use) == self._counts[use], f"slots {use.name} are miscounted"
        free = [slot for slot, use in enumerate(self._use) if use is StateUse.FREE]
        assert sorted(self._free) == free, "a slot is lost, or free twice"
        snapshots = [slot for slot, use in enumerate(self._use) if use is StateUse.SNAPSHOT]
        assert sorted(self._slot_of.values()) == snapshots, "a snapshot is lost, or has two hashes"
        by_tenant: dict[str, list[bytes]] = {}
        for block_hash in self._slot_of:
            by_tenant.setdefault(self._tenant_of[block_hash], []).append(block_hash)
        assert len(self._tenant_of) == len(self._slot_of), "a snapshot without a tenant, or a tenant without one"
        assert {tenant: list(own) for tenant, own in self._of_tenant.items()} == by_tenant, (
            "the snapshots of a tenant are miscounted, or out of order"
        )
        available = self.count(StateUse.FREE) + self.count(StateUse.SNAPSHOT)
        assert available + self.count(StateUse.RUNNING) >= self.max_running, "running sequences lack state slots"

    def _take(self, use: StateUse) -> int:
        slot = self._free.pop()
        self._change(slot, StateUse.FREE, use)
        return slot

    def _change(self, slot: int, before: StateUse, after: StateUse) -> None:
        assert self._use[slot] is before, f"state slot {slot} is {self._use[slot].name}, not {before.name}"
        self._use[slot] = after
        counts = self._counts
        self._counts = counts | {before: counts[before] - 1, after: counts[after] + 1}
