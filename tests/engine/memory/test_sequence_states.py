"""States of sequences: where a prefix is reused, for whom, and what is left when a request goes."""

import pytest

from engine.memory import BlockPool, KVCacheManager, SequenceStates, StatePool
from engine.memory.state_pool import StateUse
from engine.request import STANDARD, Request
from engine.scheduling.plan import ScheduledRow
from engine.scheduling.stats import StateStats, state_stats
from engine.simulation import make_request
from tests.engine.memory.support import admit

PROMPT = list(range(100))
LAST_BORDER = 96


class Memory:
    """A cache of 40 blocks with `slots` state slots for three running sequences. States are saved every 32 tokens."""

    def __init__(self, slots: int = 12, *, prefix_cache: bool = True) -> None:
        self.blocks, self.slots = BlockPool(40), StatePool(slots, 3)
        self.states = SequenceStates(self.slots, interval_blocks=2)
        self.cache = KVCacheManager(self.blocks, prefix_cache=prefix_cache, states=self.states)
        self.cache.reserve([STANDARD], 1.0)
        self.requests: list[Request] = []

    def request(self, name: str, tokens: list[int] = PROMPT, **settings: object) -> Request:
        request = make_request(name, tokens, **settings)  # type: ignore[arg-type]
        assert admit(self.cache, request)
        self.requests.append(request)
        return request

    def compute(self, request: Request, tokens: int) -> list[int]:
        """Compute the next tokens in one row. Returns the positions of the states that it saves."""
        self.states.plan([], save=True)  # copies of admissions
        row = ScheduledRow(request, request.computed, tokens, False)
        request.scheduled = request.computed + tokens
        saves = self.states.plan([row], save=self.cache.saves_states).saves
        self.cache.check(self.requests)
        self.cache.commit(request, tokens)
        self.cache.check(self.requests)
        return sorted(save.position for save in saves)

    def release(self, request: Request, **settings: bool) -> None:
        self.cache.release(request, **settings)
        self.requests.remove(request)
        self.cache.check(self.requests)


def test_states_are_saved_at_intervals_and_at_the_last_border_of_the_prompt() -> None:
    memory = Memory()
    request = memory.request("a", list(range(85)))
    assert memory.compute(request, 31) == []
    assert memory.compute(request, 1) == [32]
    assert memory.compute(request, 53) == [64, 80]


def test_a_prefix_is_reused_up_to_a_saved_state() -> None:
    memory = Memory()
    memory.compute(memory.request("a"), 70)  # blocks up to 64, states at 32 and 64
    later = memory.request("b")
    assert later.computed == later.cached_tokens == 64
    copies = memory.states.plan([], save=True).copies
    assert [(memory.slots.use_of(source), target) for source, target in copies] == [(StateUse.SNAPSHOT, later.state)]
    other = memory.request("c", [*PROMPT[:60], 7, *PROMPT[61:]])  # three blocks alike, a state after two
    assert other.computed == 32


def test_the_same_prompt_computes_less_than_a_block_again() -> None:
    memory = Memory()
    memory.compute(memory.request("a"), 100)
    assert memory.request("b").computed == LAST_BORDER


def test_slots_hits_and_evictions_are_counted() -> None:
    memory = Memory(4)  # three for running sequences: one for states that are saved
    counted = lambda: state_stats(memory.states)  # noqa: E731
    assert counted() == StateStats(slots=4, used=0, kept=0, hits_total=0, evictions_total=0)
    first = memory.request("a")
    assert (counted().used, counted().kept) == (1, 0)
    memory.compute(first, 100)
    assert (counted().used, counted().kept, counted().hits_total) == (1, 1, 0)
    memory.release(first)
    assert (counted().used, counted().kept) == (0, 1)
    again = memory.request("b")
    assert (again.computed, counted().hits_total, counted().evictions_total) == (LAST_BORDER, 1, 0)
    others = [memory.request(name, [number] * 50) for number, name in enumerate("cd")]
    assert (counted().used, counted().kept) == (3, 1)
    memory.compute(others[0], 50)
    assert (counted().used, counted().kept, counted().evictions_total) == (3, 1, 1)
    for request in (again, *others):
        memory.release(request)
    assert (counted().used, counted().kept) == (0, 1)


def test_counts_of_slots_add_up_in_every_state_that_is_read() -> None:
    pool = StatePool(2, 1)
    before = pool.counts
    slot = pool.take_running()
    assert sum(before.values()) == sum(pool.counts.values()) == 2
    assert (before[StateUse.RUNNING], pool.counts[StateUse.RUNNING]) == (0, 1)
    pool.give_back(slot, StateUse.RUNNING)


def test_a_state_is_of_one_tenant() -> None:
    memory = Memory()
    memory.compute(memory.request("a", salt=b"one"), 100)
    assert memory.request("b", salt=b"two").computed == 0
    assert memory.request("c", salt=b"one").computed == LAST_BORDER


def test_a_state_goes_with_its_block() -> None:
    memory = Memory()
    first = memory.request("a")
    memory.compute(first, 100)
    memory.release(first)
    filler = memory.request("filler", list(range(1000, 1000 + 40 * 16 - 1)))  # takes every block
    assert memory.slots.count(StateUse.SNAPSHOT) == 0
    memory.release(filler)
    assert memory.request("b").computed == 0


def test_the_least_recently_used_state_goes_where_slots_are_short() -> None:
    memory = Memory(slots=5)
    request = memory.request("a")
    memory.compute(request, 100)  # of 32, 64 and 96 two remain
    assert memory.slots.count(StateUse.SNAPSHOT) == 2
    memory.release(request)
    assert memory.request("b").computed == LAST_BORDER


def test_a_request_that_goes_leaves_no_slot_behind() -> None:
    memory = Memory()
    request = memory.request("a")
    memory.states.plan([ScheduledRow(request, 0, 100, False)], save=True)
    assert memory.slots.count(StateUse.PENDING) == 3
    memory.release(request)
    assert memory.slots.count(StateUse.FREE) == memory.slots.num_slots
    assert request.state is None


def test_states_of_a_failed_request_are_not_reused() -> None:
    memory = Memory()
    request = memory.request("a")
    memory.compute(request, 100)
    memory.release(request, forget=True)
    assert memory.slots.count(StateUse.FREE) == memory.slots.num_slots


def test_no_state_is_saved_without_a_prefix_cache() -> None:
    memory = Memory(slots=3, prefix_cache=False)
    assert memory.compute(memory.request("a"), 100) == []
    assert memory.request("b").computed == 0


def test_a_state_never_goes_back_to_fork_a_prompt() -> None:
    memory = Memory()
    parent = memory.request("a")
    memory.compute(parent, 100)
    child = make_request("b", PROMPT)
    with pytest.raises(AssertionError, match="does not go back"):
        memory.cache.fork(parent, child, memory.cache.demand(child, parent))
