"""The first seeds, with plans made after each step and ahead, with drafts and without: nothing breaks."""

import pytest

from engine.simulation.campaign import Limits, run_campaign

SEEDS = 25
"""Of each of the four ways to run."""


@pytest.mark.parametrize("speculate", [False, True], ids=["without drafts", "with drafts"])
@pytest.mark.parametrize("ahead", [0, 1], ids=["after each step", "ahead"])
def test_no_seed_breaks_an_invariant(ahead: int, speculate: bool) -> None:
    report = run_campaign(0, Limits(seeds=SEEDS), ahead=ahead, speculate=speculate)
    assert report.failed_seed is None, report.failure
    assert report.seeds == SEEDS
