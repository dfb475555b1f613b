"""Seeded traffic for a model with few slots for many adapters: no request starves; planted bugs are found."""

import pytest

from engine.memory.step_blocks import BLOCKS_A_STEP
from engine.simulation.campaign import Limits, run_campaign
from engine.simulation.simulator import simulate
from tests.engine.simulation.clean_seeds import assert_seeds_are_clean
from tests.engine.simulation.plants import assert_found
from tests.support.planting import Plant, drop, never, plants_in, replace

SEEDS = 25

TABLE = {
    "engine.adapters.pool:AdapterPool": [
        Plant("an adapter in use is evicted", "claim", replace("held.resident and not held.leases", "held.resident")),
        Plant("a slot is lost when a load fails", "fail", drop("append")),
    ],
    "engine.scheduling.adapter_queue:AdapterQueue": [
        Plant("an adapter is used before it is loaded", "take", never("not self.pool.is_resident(source.digest)")),
        Plant("a lease is not given back", "give_back", drop("release")),
    ],
    "engine.scheduling.request_table:RequestTable": [
        Plant("a paused request keeps its lease", "pause", drop("give_back")),
        Plant("a finished request keeps its lease", "remove", drop("give_back")),
        Plant("requests that wait for an adapter are forgotten", "unpark", drop("_join_queue")),
    ],
    "engine.scheduling.adapter_assignment:AdapterAssignment": [
        Plant("a request is parked while it runs", "_displace", drop("preempt")),
    ],
    "engine.memory.request_hashes": [
        Plant(
            "adapters share a prefix",
            "extras_of",
            replace("extras if adapter is None else [*extras, adapter_extra(adapter)]", "extras"),
        ),
    ],
}


@pytest.mark.parametrize("blocks_a_step", [2, BLOCKS_A_STEP])
@pytest.mark.parametrize("ahead", [0, 1], ids=["after each step", "ahead"])
def test_no_seed_breaks_an_invariant(ahead: int, blocks_a_step: int) -> None:
    assert_seeds_are_clean(SEEDS, ahead=ahead, blocks_a_step=blocks_a_step, adapters=True)


def test_equal_seeds_give_equal_traces_which_adapters_change() -> None:
    with_adapters = [simulate(0, adapters=True).trace_hash for _ in range(2)]
    assert with_adapters[0] == with_adapters[1] != simulate(0).trace_hash


def test_adapters_are_loaded_and_evicted() -> None:
    report = run_campaign(0, Limits(seeds=20), adapters=True)
    assert report.adapter_loads > 60
    assert report.cached_tokens > 0


@pytest.mark.parametrize("plant", plants_in(TABLE), ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    assert_found(plant, " --adapters", adapters=True)
