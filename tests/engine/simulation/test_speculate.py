"""The same traffic with drafts, right and wrong ones: nothing breaks, and what could go wrong there is found."""

import os

import pytest

from engine.memory import KVCacheManager
from engine.scheduling import drafting as drafting_module
from engine.scheduling import planner as planner_module
from engine.scheduling.commit import Committer
from engine.scheduling.ledger import Ledger
from engine.scheduling.planner import Planner
from engine.simulation.campaign import CampaignReport, Limits, run_campaign
from engine.simulation.report import SimulationFailure
from engine.simulation.simulator import simulate
from tests.engine.simulation.mutants import Mutant

SEEDS = 200
SEEDS_TO_FIND_A_BUG = 100

MUTANTS = [
    Mutant(
        "a rejected draft is published",
        Committer,
        "_append_drafted",
        "self._cache.commit(request, taken)",
        "self._cache.commit(request, row.tokens)",
    ),
    Mutant("blocks of rejected drafts are kept", Committer, "_append_drafted", "self._cache.trim(request)", "pass"),
    Mutant("one draft too many", Committer, "_append_drafted", "[: outcome.accepted]", "[: outcome.accepted + 1]"),
    Mutant("a stop amid drafts is overlooked", Committer, "_append_drafted", "while stop is None and", "while"),
    Mutant(
        "rejected drafts stay in flight", Committer, "_append_drafted", "request.scheduled = request.computed", "pass"
    ),
    Mutant(
        "rejected drafts are service",
        Committer,
        "_append_drafted",
        "OUTPUT_SERVICE * taken",
        "OUTPUT_SERVICE * row.tokens",
    ),
    Mutant(
        "drafts past the end count", Committer, "_append_drafted", "min(taken, outcome.accepted)", "outcome.accepted"
    ),
    Mutant(
        "log-probabilities past the end", Committer, "_append_drafted", "outcome.logprob)[:taken]", "outcome.logprob)"
    ),
    Mutant("an aborted row had one token", Committer, "_commit_row", "1 + outcome.accepted if samples", "1 if samples"),
    Mutant(
        "drafts go past the length",
        drafting_module,
        "useful_drafts",
        "return request.computed_at_end - known",
        "return 1000",
    ),
    Mutant("drafts are in a prompt", drafting_module, "useful_drafts", ">= request.prompt_tokens", ">= 0"),
    Mutant(
        "drafts take blocks kept for those above",
        KVCacheManager,
        "grow",
        "available_blocks(request.rank)",
        "free_blocks",
    ),
    Mutant("drafts have no blocks", planner_module, "with_drafts", "if not cache.grow(", "if False and cache.grow("),
    Mutant("drafts take another class's share", Planner, "_plan_drafts", "sketch.rank_tokens[request.rank], ", ""),
    Mutant("drafts cost no tokens", Planner, "_plan_drafts", "sketch.spare_tokens -= count", "pass"),
    Mutant("a chunk and its drafts", Planner, "_plan_drafts", "chunk_tokens - 1", "chunk_tokens"),
    Mutant("drafting is free of charge", Ledger, "charge_drafting", "request.engine_ns += share_ns", "pass"),
]

AHEAD_MUTANTS = [
    Mutant("drafts in flight are planned on", Planner, "plan", "if self._requests.in_flight.have_drafts:", "if False:"),
    Mutant(
        "drafts follow what is in flight",
        drafting_module,
        "useful_drafts",
        "request.computed == start",
        "start",
        from_seed=150,
    ),
    Mutant(
        "drafts for which there was no room keep theirs",
        Committer,
        "give_back",
        "if row.drafts:",
        "if False:",
        from_seed=60,
    ),
]


@pytest.fixture(scope="module", params=[0, 1], ids=["after each step", "ahead"])
def campaign(request: pytest.FixtureRequest) -> CampaignReport:
    return run_campaign(0, Limits(seeds=SEEDS), jobs=min(2, os.cpu_count() or 1), ahead=request.param, speculate=True)


def test_no_seed_breaks_an_invariant(campaign: CampaignReport) -> None:
    assert campaign.failed_seed is None, campaign.failure
    assert campaign.seeds == SEEDS


def test_the_silence_means_something(campaign: CampaignReport) -> None:
    assert min(campaign.accepted_drafts, campaign.rejected_drafts) > 5_000
    assert campaign.preemptions > 100
    assert min(campaign.faults["failure"], campaign.faults["preempt in flight"]) >= 10
    assert campaign.faults["abort in flight, in decode"] >= 10


def test_drafts_save_steps_and_change_no_other_trace() -> None:
    plain, drafted = simulate(8), simulate(8, speculate=True)
    assert drafted.trace_hash == simulate(8, speculate=True).trace_hash != plain.trace_hash
    assert drafted.accepted_drafts > 0
    assert plain.accepted_drafts == plain.rejected_drafts == 0


def find(mutant: Mutant, ahead: int) -> None:
    for seed in range(mutant.from_seed, mutant.from_seed + SEEDS_TO_FIND_A_BUG):
        simulate(seed, ahead=ahead, speculate=True)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises(SimulationFailure, match=r"again with: python -m engine\.simulation --seed \d+ --speculate"):
        find(mutant, ahead=0)


@pytest.mark.parametrize("mutant", AHEAD_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found_ahead(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises(SimulationFailure, match=r"again with: .* --seed \d+ --ahead --speculate"):
        find(mutant, ahead=1)
