"""State slots against a plain model: any order of events, every invariant after each."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from engine.memory.state_pool import StatePool, StateUse

HASHES = st.integers(0, 7).map(lambda number: bytes([number]))
TENANTS = st.sampled_from(["", "one", "two"])


class StatePoolMachine(RuleBasedStateMachine):
    """`saved` is the model of the snapshots: hash to slot and tenant, least recently used first."""

    running = Bundle("running")
    pending = Bundle("pending")

    @initialize(max_running=st.integers(1, 4), more=st.integers(0, 5), share=st.integers(1, 9))
    def start(self, max_running: int, more: int, share: int) -> None:
        self.pool = StatePool(max_running + more, max_running)
        self.pool.tenant_slots = share
        self.share = share
        self.saved: dict[bytes, tuple[int, str]] = {}
        self.evicted = 0
        self.taken: dict[int, StateUse] = {}

    def free(self) -> int:
        return self.pool.num_slots - len(self.taken) - len(self.saved)

    def uses(self, use: StateUse) -> int:
        return sum(each is use for each in self.taken.values())

    def evict(self, block_hash: bytes) -> None:
        del self.saved[block_hash]
        self.evicted += 1

    @rule(target=running)
    def begin(self):  # type: ignore[no-untyped-def]
        if self.uses(StateUse.RUNNING) == self.pool.max_running:
            return multiple()
        victim = None if self.free() else next(iter(self.saved))
        slot = self.pool.take_running()
        if victim is not None:
            assert slot == self.saved[victim][0], "not the least recently used snapshot is evicted"
            self.evict(victim)
        assert slot not in self.taken
        self.taken[slot] = StateUse.RUNNING
        return slot

    @rule(slot=consumes(running))
    def end(self, slot: int) -> None:
        self.pool.give_back(slot, StateUse.RUNNING)
        del self.taken[slot]

    @rule(target=pending, tenant=TENANTS)
    def save(self, tenant: str):  # type: ignore[no-untyped-def]
        needed = self.pool.max_running - self.uses(StateUse.RUNNING)
        own = [block_hash for block_hash, (_, owner) in self.saved.items() if owner == tenant]
        victim = None
        if not self.free() and self.saved:
            victim = own[0] if len(own) >= self.share else next(iter(self.saved))
        slot = self.pool.take_pending(tenant)
        if self.free() + len(self.saved) <= needed:
            assert slot is None, "a saved state takes what running sequences need"
            return multiple()
        assert slot is not None
        assert slot not in self.taken
        if victim is not None:
            assert slot == self.saved[victim][0], "another snapshot should be evicted"
            self.evict(victim)
        self.taken[slot] = StateUse.PENDING
        return slot, tenant

    @rule(save=consumes(pending), block_hash=HASHES)
    def publish(self, save: tuple[int, str], block_hash: bytes) -> None:
        slot, tenant = save
        self.pool.publish(slot, block_hash, tenant)
        del self.taken[slot]
        self.saved[block_hash] = self.saved.pop(block_hash, (slot, tenant))

    @rule(save=consumes(pending))
    def reject(self, save: tuple[int, str]) -> None:
        self.pool.give_back(save[0], StateUse.PENDING)
        del self.taken[save[0]]

    @rule(block_hash=HASHES)
    def lose_block(self, block_hash: bytes) -> None:
        self.pool.evict(block_hash)
        if block_hash in self.saved:
            self.evict(block_hash)

    @rule(block_hash=HASHES)
    def use(self, block_hash: bytes) -> None:
        if block_hash in self.saved:
            self.pool.touch(block_hash)
            self.saved[block_hash] = self.saved.pop(block_hash)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        assert list(self.pool.hashes) == list(self.saved)
        for block_hash, (slot, _) in self.saved.items():
            assert self.pool.find(block_hash) == slot
        assert {slot: use for slot, use in self.taken.items() if self.pool.use_of(slot) is not use} == {}
        assert self.pool.count(StateUse.FREE) == self.free()
        assert self.pool.evictions_total == self.evicted


StatePoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStatePool = StatePoolMachine.TestCase


@pytest.mark.parametrize(("slots", "running"), [(0, 0), (1, 2), (3, 0)])
def test_a_pool_has_a_slot_for_each_running_sequence(slots: int, running: int) -> None:
    with pytest.raises(ValueError, match=rf"{slots} state slots for {running} running"):
        StatePool(slots, running)
