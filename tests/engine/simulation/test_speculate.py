"""Seeded traffic with accepted and rejected drafts: invariants hold, and planted bugs are found."""

import os

import pytest

from engine.simulation.campaign import CampaignReport, Limits, run_campaign
from engine.simulation.simulator import simulate
from tests.engine.simulation.plants import assert_found
from tests.support.planting import (
    Plant,
    always,
    drop,
    drop_assignment,
    keep_operand,
    never,
    plants_in,
    replace,
    replace_argument,
)

SEEDS = 200

TABLE = {
    "engine.memory.kv_cache:KVCacheManager": [
        Plant(
            "drafts take reserved blocks",
            "grow",
            replace("self._pool.available_blocks(request.rank)", "self._pool.free_blocks"),
        ),
    ],
    "engine.scheduling.commit:Committer": [
        Plant("a rejected draft is published", "_append_drafted", replace_argument("commit", 1, "row.tokens")),
        Plant("blocks of rejected drafts are kept", "_append_drafted", drop("trim")),
        Plant(
            "one rejected draft is accepted",
            "_append_drafted",
            replace("row.drafts[: outcome.accepted]", "row.drafts[: outcome.accepted + 1]"),
        ),
        Plant("a stop between drafts is ignored", "_append_drafted", always("stop is None")),
        Plant("rejected drafts stay in flight", "_append_drafted", drop_assignment("scheduled")),
        Plant(
            "rejected drafts count as service",
            "_append_drafted",
            replace("OUTPUT_SERVICE * taken", "OUTPUT_SERVICE * row.tokens"),
        ),
        Plant(
            "drafts past the end count as accepted", "_append_drafted", keep_operand("min(taken, outcome.accepted)", 1)
        ),
        Plant(
            "logprobs past the end are sent",
            "_append_drafted",
            keep_operand("(*outcome.draft_logprobs, outcome.logprob)[:taken]", 0),
        ),
        Plant("an aborted row counts as one token", "_commit_row", keep_operand("1 + outcome.accepted", 0)),
    ],
    "engine.scheduling.drafting": [
        Plant("drafts exceed max_tokens", "useful_drafts", replace("request.computed_at_end - known", "1000")),
        Plant("drafts are verified in a prompt", "useful_drafts", replace("request.prompt_tokens", "0")),
        Plant("drafts get no blocks", "with_drafts", never("not cache.grow(request, known + len(drafts))")),
    ],
    "engine.scheduling.ledger:Ledger": [
        Plant("drafting is not charged", "charge_drafting", drop_assignment("engine_ns")),
    ],
    "engine.scheduling.planner:Planner": [
        Plant(
            "drafts exceed the class's share",
            "_plan_drafts",
            replace("sketch.rank_tokens[request.rank]", "sketch.spare_tokens"),
        ),
        Plant("drafts use no budget", "_plan_drafts", drop_assignment("spare_tokens")),
        Plant("a row with drafts exceeds a chunk", "_plan_drafts", keep_operand("self._config.chunk_tokens - 1", 0)),
    ],
}
PLANTS = plants_in(TABLE)

AHEAD_TABLE = {
    "engine.scheduling.commit:Committer": [
        Plant("blocks of drafts outlive a step without memory", "give_back", never("row.drafts"), seed=60),
    ],
    "engine.scheduling.in_flight:InFlightSteps": [
        Plant("rows that follow rejected drafts are not moved", "reject", never("drafts")),
    ],
    "engine.scheduling.drafting": [
        Plant("a row follows drafts before min_tokens", "can_be_followed", replace("too_short", "False")),
        Plant(
            "drafts follow a token in flight",
            "useful_drafts",
            replace(
                "tokens == 1 and request.computed == start == known - 1 >= request.prompt_tokens",
                "tokens == 1 and start == known - 1 >= request.prompt_tokens",
            ),
            seed=150,
        ),
    ],
    "engine.scheduling.planner:Planner": [
        Plant("rows of any kind follow drafts", "plan", never("not self._may_follow_drafts")),
    ],
}
AHEAD_PLANTS = plants_in(AHEAD_TABLE)


@pytest.fixture(scope="module", params=[0, 1], ids=["after each step", "ahead"])
def campaign(request: pytest.FixtureRequest) -> CampaignReport:
    return run_campaign(0, Limits(seeds=SEEDS), jobs=min(2, os.cpu_count() or 1), ahead=request.param, speculate=True)


def test_no_seed_breaks_an_invariant(campaign: CampaignReport) -> None:
    assert campaign.failed_seed is None, campaign.failure
    assert campaign.seeds == SEEDS


def test_the_campaign_includes_each_kind_of_fault(campaign: CampaignReport) -> None:
    assert min(campaign.accepted_drafts, campaign.rejected_drafts) > 5_000
    assert campaign.preemptions > 100
    assert min(campaign.faults["failure"], campaign.faults["preempt in flight"]) >= 10
    assert campaign.faults["abort in flight, in decode"] >= 10


def test_equal_seeds_give_equal_traces_with_drafts() -> None:
    plain, drafted = simulate(8), simulate(8, speculate=True)
    assert drafted.trace_hash == simulate(8, speculate=True).trace_hash != plain.trace_hash
    assert drafted.accepted_drafts > 0
    assert plain.accepted_drafts == plain.rejected_drafts == 0


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    assert_found(plant, " --speculate", speculate=True)


@pytest.mark.parametrize("plant", AHEAD_PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bug_is_found_ahead(plant: Plant) -> None:
    assert_found(plant, " --ahead --speculate", ahead=1, speculate=True)
