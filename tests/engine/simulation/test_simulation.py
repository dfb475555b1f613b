"""Seeded traffic: invariants in every step, streams as if alone, equal traces; and bugs planted to be found."""

import os
import subprocess
import sys

import pytest

from engine.simulation.patterns import traffic_from_seed
from engine.simulation.report import SimulationFailure, SimulationReport
from engine.simulation.simulator import simulate, simulate_traffic
from tests.engine.simulation.mutants import MUTANTS, Mutant

SEEDS_TO_FIND_A_BUG = 100


def simulate_all(seeds: range) -> list[SimulationReport]:
    return [simulate(seed) for seed in seeds]


def test_equal_seeds_give_equal_traces_in_any_process() -> None:
    """Hash randomisation differs between the processes, so an iteration over a set would show."""
    outputs = {
        subprocess.run(
            [sys.executable, "-m", "engine.simulation", "--seed", seed],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
        for seed in ("5", "6")
    }
    assert len(outputs) == 2
    assert all(any(simulate(seed).trace_hash in output for output in outputs) for seed in (5, 6))
    assert simulate(5).trace_hash != simulate(6).trace_hash


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises(SimulationFailure, match=r"again with: python -m engine\.simulation --seed \d+"):
        simulate_all(range(mutant.from_seed, mutant.from_seed + SEEDS_TO_FIND_A_BUG))


def test_time_is_predicted_well_soon_after_a_first_step_that_hung() -> None:
    """`python -m engine.simulation --seed 1000713 --only '3,6,7,14' --faults '0'`: the first step takes 30 s."""
    simulate_traffic(traffic_from_seed(1_000_713).only((3, 6, 7, 14), (0,)))
