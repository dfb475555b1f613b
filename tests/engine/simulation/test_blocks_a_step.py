"""Seeded traffic with few KV blocks allocated and freed per step, so that most requests need several steps."""

import pytest

from engine.simulation.campaign import Limits, run_campaign
from engine.simulation.simulator import simulate
from tests.engine.simulation.plants import assert_found
from tests.support.planting import Plant, always, drop, drop_assignment, never, plants_in, replace_argument

SEEDS = 25

TABLE = {
    "engine.memory.block_pool:BlockPool": [
        Plant("pledged blocks count as available", "pledge", drop_assignment("_pledged")),
    ],
    "engine.memory.step_blocks:StepBlocks": [
        Plant("a pledge outlives the allocation", "end_allocation", drop("unpledge")),
        Plant("blocks on the release queue leak", "_take_back", drop("release")),
    ],
    "engine.memory.kv_cache:KVCacheManager": [
        Plant(
            "cached blocks follow own blocks",
            "allocate_more",
            always("request.computed == len(table) * BLOCK_TOKENS"),
            seed=120,
        ),
    ],
    "engine.memory.prefix_hits:PrefixHits": [
        Plant("changed hits stay valid", "_has_changed", never("not self._members.isdisjoint(changes)")),
    ],
    "engine.scheduling.planner:Planner": [
        Plant("a request computes before it has its blocks", "_plan_running", never("request.is_allocating")),
    ],
    "engine.scheduling.request_table:RequestTable": [
        Plant("cached blocks found later are not counted", "allocate_more", replace_argument("advance", 0, "0")),
    ],
}
PLANTS = plants_in(TABLE)


@pytest.mark.parametrize("blocks_a_step", [1, 2, 4])
@pytest.mark.parametrize("ahead", [0, 1], ids=["after each step", "ahead"])
def test_no_seed_breaks_an_invariant(ahead: int, blocks_a_step: int) -> None:
    for speculate in (False, True):
        report = run_campaign(0, Limits(seeds=SEEDS), ahead=ahead, speculate=speculate, blocks_a_step=blocks_a_step)
        assert report.failed_seed is None, report.failure


def test_equal_seeds_give_equal_traces_which_the_limit_changes() -> None:
    few = [simulate(5, blocks_a_step=1).trace_hash for _ in range(2)]
    assert few[0] == few[1] != simulate(5).trace_hash


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
@pytest.mark.parametrize("blocks_a_step", [1, 2])
def test_a_planted_bug_is_found(plant: Plant, blocks_a_step: int) -> None:
    assert_found(plant, rf" --blocks-a-step {blocks_a_step}", blocks_a_step=blocks_a_step)
