"""The same traffic where a step hands out and takes back few KV blocks: most requests are long ones then."""

import pytest

from engine.memory import KVCacheManager
from engine.memory.block_pool import BlockPool
from engine.memory.prefix_hits import PrefixHits
from engine.scheduling.planner import Planner
from engine.scheduling.request_table import RequestTable
from engine.simulation.campaign import Limits, run_campaign
from engine.simulation.report import SimulationFailure
from engine.simulation.simulator import simulate
from tests.engine.simulation.mutants import Mutant

SEEDS = 25
SEEDS_TO_FIND_A_BUG = 150

MUTANTS = [
    Mutant(
        "a request computes before it has its blocks",
        Planner,
        "_plan_running",
        "if request.is_allocating:",
        "if False:",
    ),
    Mutant(
        "cached blocks found later are not counted",
        RequestTable,
        "allocate_more",
        "request.computed - before, 0",
        "0, 0",
    ),
    Mutant("a pledge is kept", KVCacheManager, "_end_allocation", "self._pool.unpledge(", "(lambda *_: 0)("),
    Mutant("what is pledged is free", BlockPool, "pledge", "self._pledged[rank] += count", "pass"),
    Mutant("what returns is lost", KVCacheManager, "_take_back", "self._pool.release(taken, rank, holder)", "pass"),
    Mutant("hits go stale", PrefixHits, "_has_changed", "not self._members.isdisjoint(changes)", "False"),
    Mutant(
        "cached blocks come behind its own",
        KVCacheManager,
        "allocate_more",
        "if request.computed ==",
        "if True or 0 ==",
    ),
]


@pytest.mark.parametrize("blocks_a_step", [1, 2, 4])
@pytest.mark.parametrize("ahead", [0, 1], ids=["after each step", "ahead"])
def test_no_seed_breaks_an_invariant(ahead: int, blocks_a_step: int) -> None:
    for speculate in (False, True):
        report = run_campaign(0, Limits(seeds=SEEDS), ahead=ahead, speculate=speculate, blocks_a_step=blocks_a_step)
        assert report.failed_seed is None, report.failure


def test_equal_seeds_give_equal_traces_and_it_is_something_else() -> None:
    few = [simulate(5, blocks_a_step=1).trace_hash for _ in range(2)]
    assert few[0] == few[1] != simulate(5).trace_hash


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises(SimulationFailure, match=r"--seed \d+ --blocks-a-step \d"):
        for seed in range(SEEDS_TO_FIND_A_BUG):
            simulate(seed, blocks_a_step=1 + seed % 2)
