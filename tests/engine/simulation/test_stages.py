"""Seeded traffic through a pipeline with as many steps in flight as stages: invariants hold, and planted bugs are
found."""

import os

import pytest

from engine.simulation.campaign import Limits, run_campaign
from engine.simulation.simulator import simulate
from tests.engine.simulation.plants import assert_found
from tests.support.planting import Plant, always, drop, never, plants_in, replace, replace_callee

TABLE = {
    "engine.scheduling.decode_blocks": [
        Plant(
            "a block is taken for a token that is not known",
            "allocate_decode_blocks",
            always("ahead or not awaits_token(request)"),
        ),
    ],
    "engine.scheduling.in_flight:InFlightSteps": [
        Plant("a drop reaches the newest step only", "drop", replace("self._steps", "[self._steps[-1]]")),
        Plant("steps complete in reverse order", "complete", replace_callee("popleft", "pop")),
    ],
    "engine.scheduling.micro_batches": [
        Plant(
            "a row begins before its token is known",
            "held_back",
            replace("[*awaiting, *ready[share:]]", "ready[share:]"),
        ),
        Plant("one step has the rows of all requests", "held_back", replace("ready[share:]", "()")),
        Plant("the first are held back", "held_back", replace("ready[share:]", "ready[:-share]")),
        Plant("a step has too few rows", "held_back", replace("-(-len(decoding) // micro_batches)", "1")),
        Plant("those that end count", "held_back", never("ends_in_flight(request)")),
    ],
    "engine.scheduling.planner:Planner": [
        Plant("rows follow drafts", "_may_follow_drafts", replace("self.micro_batches == 1", "True")),
        Plant("a request in flight gets a row", "_plan_running", never("request in sketch.held_back")),
        Plant(
            "a victim without a row brings a token", "_admit", replace("victim not in sketch.held_back", "1"), seed=40
        ),
    ],
    "engine.scheduling.request_table:RequestTable": [
        Plant("rows outlive a preemption", "_stop", drop("drop")),
    ],
}
PLANTS = plants_in(TABLE)
DRAFTS = "rows follow drafts"


@pytest.mark.parametrize(("stages", "speculate"), [(2, False), (4, False), (3, True)])
def test_no_seed_breaks_an_invariant(stages: int, speculate: bool) -> None:
    limits = Limits(seeds=25)
    report = run_campaign(0, limits, jobs=min(2, os.cpu_count() or 1), stages=stages, speculate=speculate)
    assert report.failed_seed is None, report.failure
    assert report.faults["preempt in flight"] > 0
    assert report.wasted_rows > 10
    assert (report.accepted_drafts > 0) == speculate


@pytest.mark.parametrize(
    "options", [{"states": True}, {"windows": True}, {"adapters": True}, {"blocks_a_step": 2}], ids=str
)
def test_of_other_models(options: dict[str, bool | int]) -> None:
    report = run_campaign(0, Limits(seeds=60), jobs=min(2, os.cpu_count() or 1), stages=2, **options)  # type: ignore[arg-type]
    assert report.failed_seed is None, report.failure


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    assert_found(plant, ".* --stages 3", stages=3, speculate=plant.name == DRAFTS)


def test_equal_seeds_give_equal_traces_which_stages_change() -> None:
    assert simulate(5, stages=2).trace_hash == simulate(5, stages=2).trace_hash != simulate(5).trace_hash
