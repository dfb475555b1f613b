"""Seeded traffic for a model whose layers have windows: passed blocks are released; planted bugs are found."""

import pytest

from engine.simulation.simulator import simulate
from tests.engine.simulation.clean_seeds import assert_seeds_are_clean
from tests.engine.simulation.plants import assert_found
from tests.support.planting import Plant, drop, keep_operand, plants_in, replace

SEEDS = 25

TABLE = {
    "engine.memory.kv_cache:KVCacheManager": [
        Plant("the hits of further groups are not checked", "hits", drop("narrow")),
    ],
    "engine.memory.window_groups:WindowGroups": [
        Plant(
            "a block in the window is released", "release_passed", replace("request.computed", "request.computed + 16")
        ),
        Plant(
            "a released block stays in its table",
            "release_passed",
            replace("[NULL_BLOCK] * (first - start)", "table[start:first]"),
        ),
        Plant(
            "blocks of further groups leak",
            "end",
            replace("(request.block_table, *request.window_tables)", "(request.block_table,)"),
        ),
    ],
    "engine.memory.window_groups": [
        Plant("groups share a hash", "group_hash", keep_operand('block_hash + group.to_bytes(1, "little")', 0)),
    ],
}


@pytest.mark.parametrize("blocks_a_step", [1, 3, 1024])
@pytest.mark.parametrize("ahead", [0, 1], ids=["after each step", "ahead"])
def test_no_seed_breaks_an_invariant(ahead: int, blocks_a_step: int) -> None:
    assert_seeds_are_clean(SEEDS, ahead=ahead, blocks_a_step=blocks_a_step, windows=True)


def test_equal_seeds_give_equal_traces_which_windows_change() -> None:
    with_windows = [simulate(0, windows=True).trace_hash for _ in range(2)]
    assert with_windows[0] == with_windows[1] != simulate(0).trace_hash


def test_prefixes_are_reused() -> None:
    assert sum(simulate(seed, windows=True).cached_tokens for seed in range(10)) > 0


@pytest.mark.parametrize("plant", plants_in(TABLE), ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    assert_found(plant, " --windows", windows=True)
