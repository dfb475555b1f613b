"""The slots of adapters: no slot is in use twice, and the least recently used adapter goes first."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.adapters.pool import AdapterPool

SLOTS = 3
DIGESTS = st.sampled_from("abcdef")


def test_the_least_recently_used_adapter_without_a_lease_is_evicted() -> None:
    pool = AdapterPool(2)
    for digest in "ab":
        assert pool.claim(digest) is not None
        pool.loaded(digest)
    pool.lease("a")
    pool.release("a")
    slot = pool.lease("b")
    assert pool.claim("c") is not None
    assert pool.is_resident("b")
    assert "a" not in pool
    pool.release("b")
    assert pool.claim("d") == slot, "b is the only one that can be evicted: c is being loaded"
    assert pool.claim("e") is None


class PoolMachine(RuleBasedStateMachine):
    """A pool against a model of it: by adapter its slot, whether it is filled, its leases and its last use."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = AdapterPool(SLOTS)
        self.slots: dict[str, int] = {}
        self.filled: set[str] = set()
        self.leases: dict[str, int] = {}
        self.used: list[str] = []

    def touch(self, digest: str) -> None:
        self.used = [other for other in self.used if other != digest] + [digest]

    @rule(digest=DIGESTS)
    def claim(self, digest: str) -> None:
        if digest in self.slots:
            return
        idle = [other for other in self.used if other in self.filled and not self.leases.get(other)]
        slot = self.pool.claim(digest)
        if len(self.slots) == SLOTS:
            if not idle:
                assert slot is None
                return
            assert slot == self.slots.pop(idle[0])
            self.filled.discard(idle[0])
            self.used.remove(idle[0])
        assert slot is not None
        assert slot not in self.slots.values()
        self.slots[digest] = slot

    @rule(digest=DIGESTS, succeeds=st.booleans())
    def end_load(self, digest: str, succeeds: bool) -> None:
        if digest not in self.slots or digest in self.filled:
            return
        if succeeds:
            self.pool.loaded(digest)
            self.filled.add(digest)
            self.touch(digest)
        else:
            self.pool.fail(digest)
            del self.slots[digest]

    @rule(digest=DIGESTS)
    def lease(self, digest: str) -> None:
        if digest in self.filled:
            assert self.pool.lease(digest) == self.slots[digest]
            self.leases[digest] = self.leases.get(digest, 0) + 1
            self.touch(digest)

    @precondition(lambda self: any(self.leases.values()))
    @rule(digest=DIGESTS)
    def release(self, digest: str) -> None:
        if self.leases.get(digest):
            self.pool.release(digest)
            self.leases[digest] -= 1
            self.touch(digest)

    @invariant()
    def is_as_expected(self) -> None:
        self.pool.check(self.leases)
        assert set(self.pool) == set(self.slots)
        assert {digest for digest in self.slots if self.pool.is_resident(digest)} == self.filled
        assert self.pool.resident == len(self.filled)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
