"""The same traffic with plans made a step ahead: nothing breaks, and what could go wrong there is found."""

import os

import pytest

from engine.memory import KVCacheManager
from engine.scheduling import admission as admission_module
from engine.scheduling import planner as planner_module
from engine.scheduling import scheduler as scheduler_module
from engine.scheduling.commit import Committer
from engine.scheduling.in_flight import InFlightSteps
from engine.scheduling.ledger import Ledger
from engine.scheduling.planner import Planner
from engine.scheduling.request_table import RequestTable
from engine.scheduling.step_limits import StepSizeBackoff
from engine.simulation.campaign import CampaignReport, Limits, run_campaign
from engine.simulation.report import SimulationFailure
from engine.simulation.simulator import simulate
from tests.engine.simulation.mutants import Mutant

SEEDS = 200
SEEDS_TO_FIND_A_BUG = 100

MUTANTS = [
    Mutant(
        "blocks are published in flight",
        KVCacheManager,
        "commit",
        "full = request.computed",
        "full = request.scheduled",
    ),
    Mutant(
        "what is in flight is computed again",
        Planner,
        "_plan_running",
        "start = request.scheduled",
        "start = request.computed",
    ),
    Mutant(
        "the drawn token is counted twice",
        Planner,
        "_plan_running",
        "request.scheduled = start + 1",
        "request.scheduled = start + 2",
    ),
    Mutant("one that ends goes on", Planner, "_plan_running", "not (wanted or ends_in_flight(request))", "not wanted"),
    Mutant(
        "the last token is never drawn", scheduler_module, "computed_at_end", "window_tokens) - 1", "window_tokens) - 2"
    ),
    Mutant(
        "growth forgets what is in flight",
        planner_module,
        "allocate_decode_blocks",
        "if request.scheduled >=",
        "if request.computed >=",
    ),
    Mutant(
        "someone gives way to one that ends",
        planner_module,
        "allocate_decode_blocks",
        "return None",
        "pass",
        from_seed=110,
    ),
    Mutant(
        "one gives way that ends", admission_module, "victims_for_waiting", "if ends_in_flight(request):", "if False:"
    ),
    Mutant("a dropped row is committed", Committer, "commit", "not (dropped and request in dropped)", "True"),
    Mutant("rows outlive a preemption", RequestTable, "_stop", "self.in_flight.drop(request, drop_reason)", "pass"),
    Mutant("rows outlive their request", RequestTable, "remove", "self.in_flight.drop(request, drop_reason)", "pass"),
    Mutant("only the newest step is told", InFlightSteps, "drop", "in self._steps:", "in [self._steps[-1]]:"),
    Mutant("a wasted row is billed", Ledger, "charge", "if dropped and request in dropped:", "if False:"),
    Mutant(
        "a wasted row is service",
        Committer,
        "_commit_row",
        "drop_reason is not DropReason.ABORTED",
        "drop_reason is DropReason.PREEMPTED",
    ),
    Mutant("a lost row is the victim's", Ledger, "_charge_dropped", "case DropReason.PREEMPTED:", "case None:"),
    # steps for which there is no room
    Mutant("a step without room counts", RequestTable, "rewind", "request.scheduled = request.computed", "pass"),
    Mutant(
        "what is behind it counts", RequestTable, "rewind", "self.in_flight.drop(request, DropReason.SURPLUS)", "pass"
    ),
    Mutant("it comes again as large", StepSizeBackoff, "lower", "// 2", "// 1"),
    Mutant("the limit is not heeded", Planner, "plan", "self._backoff.tokens", "max_tokens"),
    Mutant("the smallest makes room", Committer, "give_back", "max(live", "min(live"),
    Mutant("somebody leaves at once", Committer, "give_back", "plan.total_tokens > len(live)", "False"),
    Mutant(
        "a fork has a block that nobody copied",
        Committer,
        "give_back",
        "if not copied.isdisjoint(row.request.block_table):",
        "if False:",
        from_seed=1660,
    ),
    Mutant("its time is lost", Committer, "give_back", "self._ledger.record_wasted(plan.rows, elapsed_ns)", "pass"),
    Mutant("steps land in any order", InFlightSteps, "complete", "popleft", "pop"),
]


@pytest.fixture(scope="module")
def campaign() -> CampaignReport:
    return run_campaign(0, Limits(seeds=SEEDS), jobs=min(2, os.cpu_count() or 1), ahead=1)


def test_no_seed_breaks_an_invariant(campaign: CampaignReport) -> None:
    assert campaign.failed_seed is None, campaign.failure
    assert campaign.seeds == SEEDS


def test_the_silence_means_something(campaign: CampaignReport) -> None:
    faults = campaign.faults
    assert (
        min(faults["failure"], faults["preempt in flight"], faults["abort in flight, in decode"], faults["given back"])
        >= 10
    )
    assert campaign.preemptions > 150
    assert campaign.wasted_rows > 300


def test_equal_seeds_give_equal_traces_and_running_ahead_is_something_else() -> None:
    assert simulate(5, ahead=1).trace_hash == simulate(5, ahead=1).trace_hash != simulate(5).trace_hash


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises(SimulationFailure, match=r"again with: python -m engine\.simulation --seed \d+ --ahead"):
        for seed in range(mutant.from_seed, mutant.from_seed + SEEDS_TO_FIND_A_BUG):
            simulate(seed, ahead=1)
