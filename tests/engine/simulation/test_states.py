"""Seeded traffic for a model with recurrent layers: each row reads and writes its own state; planted bugs are found."""

import pytest

from engine.simulation.simulator import simulate
from tests.engine.simulation.clean_seeds import assert_seeds_are_clean
from tests.engine.simulation.plants import assert_found
from tests.support.planting import Plant, drop, keep_operand, never, plants_in, replace, replace_argument

SEEDS = 25

TABLE = {
    "engine.memory.block_pool:BlockPool": [
        Plant("a state outlives its block", "_drop_hash", never("self.on_drop is not None")),
    ],
    "engine.memory.kv_cache:KVCacheManager": [
        Plant("a state slot leaks", "release", drop("end")),
        Plant("a saved state is not published", "commit", replace("request.state_saves", "()")),
    ],
    "engine.memory.sequence_states:SequenceStates": [
        Plant("a saved state is not copied", "begin", drop("append")),
        Plant("copies are lost", "plan", replace("tuple(self._copies)", "()")),
        Plant("copies are made in each step", "plan", replace("[]", "self._copies")),
        Plant("a freed slot stays pending", "end", drop("clear")),
        Plant(
            "a state is published under another hash",
            "publish",
            replace("request.block_hashes[position // BLOCK_TOKENS - 1]", "request.block_hashes[0]"),
        ),
        Plant("a state counts for the end of its row", "plan", replace_argument("StateSave", 1, "end")),
        Plant("another state of the prefix is copied", "begin", replace("tokens // BLOCK_TOKENS - 1", "0")),
    ],
    "engine.memory.state_pool:StatePool": [
        Plant("an evicted slot is lost", "evict", drop("give_back")),
        Plant("a slot is given twice", "_take", replace("self._free.pop()", "self._free[-1]")),
    ],
    "engine.scheduling.planner:Planner": [
        Plant(
            "a choice begins with the state of another",
            "_admit",
            keep_operand("self._cache.forks and _can_fork(parent, request)", 1),
        ),
    ],
}
AHEAD_TABLE = {
    "engine.scheduling.commit:Committer": [
        Plant("an advanced state is rewound", "give_back", never("self._cache.states is not None")),
    ],
}
IN_PARTS_TABLE = {
    "engine.memory.kv_cache:KVCacheManager": [
        Plant("a state stands for blocks that are gone", "allocate_more", never("len(cached) < count"), seed=20),
    ],
}
SPECULATE_TABLE = {
    "engine.memory.kv_cache:KVCacheManager": [
        Plant("the states of rejected drafts are kept", "trim", replace("request.state_saves", "()")),
    ],
}


@pytest.mark.parametrize("blocks_a_step", [1, 1024])
@pytest.mark.parametrize("ahead", [0, 1], ids=["after each step", "ahead"])
def test_no_seed_breaks_an_invariant(ahead: int, blocks_a_step: int) -> None:
    assert_seeds_are_clean(SEEDS, ahead=ahead, blocks_a_step=blocks_a_step, states=True)


def test_equal_seeds_give_equal_traces_which_states_change() -> None:
    with_states = [simulate(0, states=True).trace_hash for _ in range(2)]
    assert with_states[0] == with_states[1] != simulate(0).trace_hash


def test_saved_states_are_reused() -> None:
    reports = [simulate(seed, states=True) for seed in range(10)]
    assert sum(report.cached_tokens for report in reports) > 0


@pytest.mark.parametrize("plant", plants_in(TABLE), ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    assert_found(plant, " --states", states=True)


@pytest.mark.parametrize("plant", plants_in(AHEAD_TABLE), ids=lambda plant: plant.name)
def test_a_planted_bug_is_found_ahead(plant: Plant) -> None:
    assert_found(plant, " --ahead --states", ahead=1, states=True)


@pytest.mark.parametrize("plant", plants_in(IN_PARTS_TABLE), ids=lambda plant: plant.name)
def test_a_planted_bug_is_found_where_blocks_come_in_parts(plant: Plant) -> None:
    assert_found(plant, " --states --blocks-a-step 1", blocks_a_step=1, states=True)


@pytest.mark.parametrize("plant", plants_in(SPECULATE_TABLE), ids=lambda plant: plant.name)
def test_a_planted_bug_is_found_with_drafts(plant: Plant) -> None:
    assert_found(plant, " --speculate --states", speculate=True, states=True)
