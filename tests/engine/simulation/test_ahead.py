"""Seeded traffic with steps planned ahead of results: invariants hold, and planted bugs are found."""

import os

import pytest

from engine.simulation.campaign import CampaignReport, Limits, run_campaign
from engine.simulation.simulator import simulate
from tests.engine.simulation.plants import assert_found
from tests.support.planting import Plant, drop, drop_assignment, keep_operand, never, plants_in, replace, replace_callee

SEEDS = 200

TABLE = {
    "engine.memory.kv_cache:KVCacheManager": [
        Plant(
            "a block is published while it is in flight",
            "commit",
            replace("full = request.computed // BLOCK_TOKENS", "full = request.scheduled // BLOCK_TOKENS"),
        ),
    ],
    "engine.scheduling.commit:Committer": [
        Plant("a dropped row is committed", "commit", never("dropped and request in dropped")),
        Plant(
            "dropped rows count as service",
            "_commit_row",
            replace("drop_reason is not DropReason.ABORTED", "drop_reason is DropReason.PREEMPTED"),
        ),
        Plant("the request with the least KV ends", "give_back", replace_callee("max", "min")),
        Plant("a request ends before a smaller step is tried", "give_back", never("plan.total_tokens > len(live)")),
        Plant(
            "a fork keeps a block that was not copied",
            "give_back",
            never("not copied.isdisjoint(row.request.block_table)"),
            seed=1660,
        ),
        Plant("the time of a step without memory is not charged", "give_back", drop("record_wasted")),
    ],
    "engine.scheduling.decode_blocks": [
        Plant(
            "scheduled tokens get no blocks", "allocate_decode_blocks", replace("request.scheduled", "request.computed")
        ),
        Plant(
            "preemption does not wait for a request that finishes",
            "allocate_decode_blocks",
            replace("return None", "pass"),
            seed=110,
        ),
    ],
    "engine.scheduling.in_flight:InFlightSteps": [
        Plant("a drop reaches the newest step only", "drop", replace("self._steps", "[self._steps[-1]]")),
        Plant("steps complete in reverse order", "complete", replace_callee("popleft", "pop")),
    ],
    "engine.scheduling.ledger:Ledger": [
        Plant("a dropped row is charged to its request", "charge", never("dropped and request in dropped")),
        Plant(
            "a preempted row is not charged to the cause",
            "_charge_dropped",
            replace("self._charge_to_cause(request, tokens, share_ns)", "self._record_wasted(request, share_ns)"),
        ),
    ],
    "engine.scheduling.planner:Planner": [
        Plant(
            "tokens in flight are computed again",
            "_plan_running",
            replace("start = request.scheduled", "start = request.computed"),
        ),
        Plant("a decoded token is scheduled twice", "_plan_running", replace("start + 1", "start + 2")),
        Plant(
            "a request that ends in flight decodes",
            "_plan_running",
            keep_operand("wanted <= 0 and not ends_in_flight(request)", 0),
        ),
        Plant("the reduced step size is ignored", "_begin", replace("self._backoff.tokens", "max_tokens")),
    ],
    "engine.scheduling.request_table:RequestTable": [
        Plant("rows outlive a preemption", "_stop", drop("drop")),
        Plant("rows outlive their request", "remove", drop("drop")),
        Plant("a step without memory counts as computed", "rewind", drop_assignment("scheduled")),
        Plant("rows behind a step without memory count", "rewind", drop("drop")),
    ],
    "engine.scheduling.step_limits:StepSizeBackoff": [
        Plant("a step without memory is repeated as large", "lower", replace("2", "1")),
    ],
    "engine.scheduling.stopping": [
        Plant("the last token is not planned", "computed_at_end", replace("1", "2")),
    ],
    "engine.scheduling.victims": [
        Plant("a request that finishes is preempted", "victims_for_waiting", never("ends_in_flight(request)")),
    ],
}
PLANTS = plants_in(TABLE)


@pytest.fixture(scope="module")
def campaign() -> CampaignReport:
    return run_campaign(0, Limits(seeds=SEEDS), jobs=min(2, os.cpu_count() or 1), ahead=1)


def test_no_seed_breaks_an_invariant(campaign: CampaignReport) -> None:
    assert campaign.failed_seed is None, campaign.failure
    assert campaign.seeds == SEEDS


def test_the_campaign_includes_each_kind_of_fault(campaign: CampaignReport) -> None:
    faults = campaign.faults
    assert (
        min(faults["failure"], faults["preempt in flight"], faults["abort in flight, in decode"], faults["given back"])
        >= 10
    )
    assert campaign.preemptions > 150
    assert campaign.wasted_rows > 300


def test_equal_seeds_give_equal_traces_which_planning_ahead_changes() -> None:
    assert simulate(5, ahead=1).trace_hash == simulate(5, ahead=1).trace_hash != simulate(5).trace_hash


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    assert_found(plant, " --ahead", ahead=1)
