"""The whole program under simulation. Each run is a process of its own, as sets of strings have to go the same way."""

import re
import subprocess
import sys

FIRST_SEEDS = 10
SEEDS = 50
"""Those behind the first ones. `make seeds` has the next."""


def simulate(*arguments: str) -> str:
    """Output of the command. Fails where it does."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.whole", *arguments], capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_first_seeds_are_clean() -> None:
    told = simulate("--seeds", str(FIRST_SEEDS), "--jobs", "1")
    assert re.search(r"runs, 0 failed", told)


def test_scenarios_that_failed_once_and_seeds_are_clean() -> None:
    told = simulate("--known", "--from", str(FIRST_SEEDS), "--seeds", str(SEEDS), "--jobs", "1")
    assert re.search(r"runs, 0 failed", told)


def test_a_seed_goes_the_same_way_each_time() -> None:
    """In any process, whatever was run there before."""
    first, second = (
        re.findall("^[0-9]+ requests, .*", simulate("--seed", *seeds), re.MULTILINE)
        for seeds in (("0", "16", "25", "31", "39", "42"), ("42", "39", "31", "25", "16", "0"))
    )
    assert len(set(first)) == 6
    assert first == second[::-1]


def test_planted_bugs_are_found() -> None:
    """Each at the seed that is known to show it."""
    told = simulate("--plants", "known", "--seeds", "1")
    assert "missed" not in told
