"""A campaign of many seeds: invariants hold, every kind of fault occurs, and the result depends on the seeds alone."""

import os
from dataclasses import replace

import pytest

from engine.simulation.__main__ import main
from engine.simulation.campaign import CampaignReport, Limits, run_campaign
from engine.simulation.report import SimulationFailure
from engine.simulation.simulator import simulate
from tests.engine.simulation.plants import planted

SEEDS = {"sample": 400, "whole": 2000}
"""Every test run has the sample; the whole is in a tier that runs by its name alone."""
STEPS = 195
"""The minimum of a seed, on average."""


@pytest.fixture(scope="module", params=SEEDS)
def campaign(request: pytest.FixtureRequest) -> CampaignReport:
    return run_campaign(0, Limits(seeds=SEEDS[request.param]), jobs=min(2, os.cpu_count() or 1))


def test_no_seed_breaks_an_invariant(campaign: CampaignReport) -> None:
    assert campaign.failed_seed is None, campaign.failure
    assert campaign.seeds in SEEDS.values()
    assert campaign.steps > STEPS * campaign.seeds


def test_the_campaign_includes_each_fault_in_each_phase(campaign: CampaignReport) -> None:
    """Each fault occurs often, and aborts and pauses do in each phase of a request, between steps and in flight."""
    phases = ("waiting", "waiting as a fork", "in prefill", "in decode", "preempted")
    whens = ("between steps", "in flight")
    aborts = {f"abort {when}, {phase}" for when in whens for phase in (*phases, "paused")}
    pauses = {f"pause {when}, {phase}" for when in whens for phase in phases}
    others = {*(f"preempt {when}" for when in whens), "failure", "hang", "slow", "still", "jump"}
    assert campaign.faults.keys() == aborts | pauses | others
    assert min(campaign.faults.values()) >= campaign.seeds / 200
    assert len(campaign.patterns) == 9
    assert campaign.preemptions > 0.75 * campaign.seeds
    assert campaign.failures > 0.5 * campaign.seeds
    assert campaign.cached_tokens > 100 * campaign.seeds


def without_time(report: CampaignReport) -> CampaignReport:
    return replace(report, elapsed_s=0.0)


def test_the_number_of_processes_does_not_change_the_report() -> None:
    alone, together = (run_campaign(40, Limits(seeds=25), jobs=jobs) for jobs in (1, 2))
    assert without_time(alone) == without_time(together)
    assert alone.seeds == 25


def test_a_campaign_of_steps_ends_with_the_seed_that_reaches_them() -> None:
    report = run_campaign(7, Limits(steps=1000))
    last = simulate(7 + report.seeds - 1)
    assert report.steps >= 1000 > report.steps - last.steps


def test_a_campaign_ends_when_its_time_is_up() -> None:
    assert run_campaign(7, Limits(seconds=0.0)).seeds == 1


def test_a_campaign_stops_at_the_first_seed_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with planted("the hash omits the salt"):
        report = run_campaign(20, Limits(seeds=100))
        assert report.failed_seed == 20 + report.seeds
        with pytest.raises(SimulationFailure):
            simulate(report.failed_seed)
        assert main(["--seed", "20", "--seeds", "100"]) == 1
    shown = capsys.readouterr().out
    assert f"seed {report.failed_seed} FAILED" in shown
    assert f"python -m engine.simulation --seed {report.failed_seed} --only " in shown


def test_a_campaign_without_a_failure_exits_with_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2"]) == 0
    assert "2 seeds from 0 on" in capsys.readouterr().out
