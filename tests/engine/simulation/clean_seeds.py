"""A campaign of a few seeds for a kind of model, with drafts and without."""

from typing import Unpack

from engine.simulation.campaign import Limits, run_campaign
from engine.simulation.patterns import ModelOptions


def assert_seeds_are_clean(seeds: int, **options: Unpack[ModelOptions]) -> None:
    for speculate in (False, True):
        report = run_campaign(0, Limits(seeds=seeds), **{**options, "speculate": speculate})
        assert report.failed_seed is None, report.failure
