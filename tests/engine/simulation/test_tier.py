"""Seeded traffic with a second pool of KV blocks, whose copier is late, loses and corrupts: no wrong byte is read."""

import pytest

from engine.simulation.campaign import Limits, run_campaign
from engine.simulation.simulator import simulate
from tests.engine.simulation.clean_seeds import assert_seeds_are_clean
from tests.engine.simulation.plants import assert_found
from tests.support.planting import Plant, drop, plants_in, replace

SEEDS = 12

TABLE = {
    "engine.memory.tiers.leases:Leases": [
        Plant("a block is not lent", "lend", drop("acquire")),
        Plant("a lease is never ended", "end", drop("release")),
    ],
    "engine.memory.tiers.fetching:Fetching": [
        Plant(
            "a block is published before it is filled",
            "begin",
            replace(
                "self._fetches[number] = fetch",
                "self._fetches[number] = fetch; self._pool.publish(blocks[0], hashes[0])",
            ),
        ),
    ],
}
"""Bugs of which each is to be found in the first seeds."""


@pytest.mark.parametrize("blocks_a_step", [2, 1024])
@pytest.mark.parametrize("ahead", [0, 1], ids=["after each step", "ahead"])
def test_no_seed_breaks_an_invariant(ahead: int, blocks_a_step: int) -> None:
    assert_seeds_are_clean(SEEDS, ahead=ahead, blocks_a_step=blocks_a_step, tier=True)


def test_no_seed_breaks_an_invariant_with_drafts_and_adapters() -> None:
    assert_seeds_are_clean(SEEDS, ahead=1, speculate=True, adapters=True, tier=True)


def test_blocks_are_fetched_and_equal_seeds_give_equal_traces() -> None:
    report = run_campaign(0, Limits(seeds=SEEDS), tier=True)
    assert report.failed_seed is None
    assert report.fetched_blocks > 0
    assert simulate(4, tier=True).trace_hash == simulate(4, tier=True).trace_hash


@pytest.mark.parametrize("plant", plants_in(TABLE), ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    assert_found(plant, " --ahead --tier", ahead=1, tier=True)
