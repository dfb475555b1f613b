"""A campaign of a few seeds for a kind of model, with drafts and without."""

from engine.simulation.campaign import Limits, run_campaign


def assert_seeds_are_clean(
    seeds: int,
    *,
    ahead: int,
    blocks_a_step: int,
    states: bool = False,
    windows: bool = False,
    adapters: bool = False,
) -> None:
    for speculate in (False, True):
        report = run_campaign(
            0,
            Limits(seeds=seeds),
            ahead=ahead,
            speculate=speculate,
            blocks_a_step=blocks_a_step,
            states=states,
            windows=windows,
            adapters=adapters,
        )
        assert report.failed_seed is None, report.failure
