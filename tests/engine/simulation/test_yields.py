"""Seeded traffic whose lowest class yields: it is left out of steps only for prompts above it, and loses nothing."""

import pytest

from tests.engine.simulation.clean_seeds import assert_seeds_are_clean


@pytest.mark.parametrize("options", [{}, {"ahead": 1}, {"speculate": True, "ahead": 1}, {"blocks_a_step": 2}])
def test_seeds_are_clean(options: dict[str, int]) -> None:
    assert_seeds_are_clean(20, yields=True, **options)
