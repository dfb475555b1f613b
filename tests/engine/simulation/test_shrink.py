"""A failing seed becomes a small case that fails the same way, and comes with the command that shows it."""

import shlex
from dataclasses import dataclass

import pytest

from engine.simulation.__main__ import main
from engine.simulation.patterns import traffic_from_seed
from engine.simulation.shrink import failure_of, shrink
from tests.engine.simulation.mutants import planted


@dataclass(frozen=True)
class Example:
    """A bug, the first seed that shows it, and what it takes to show it: at most so many requests and faults."""

    bug: str
    seed: int
    requests: int
    faults: int


EXAMPLES = (
    Example("the hash forgets the salt", 30, 3, 0),
    Example("a victim of an equal class", 35, 8, 0),
    Example("an aborted row is committed", 2, 6, 3),
    Example("a failed step's blocks stay cached", 2, 2, 1),
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.bug)
def test_a_planted_bug_is_reduced(
    example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    traffic = traffic_from_seed(example.seed)
    assert failure_of(traffic) is None
    planted(example.bug, monkeypatch)
    whole, case = failure_of(traffic), shrink(traffic)
    assert whole is not None
    assert case is not None
    assert 0 < len(case.arrivals) <= example.requests < len(traffic.arrivals)
    assert len(case.faults) <= example.faults

    again = failure_of(traffic.only(case.arrivals, case.faults))
    assert again is not None
    assert again.invariant == case.failure.invariant == whole.invariant
    assert again.step <= 100

    command = str(case.failure).splitlines()[0].partition("again with: ")[2]
    assert main(shlex.split(command)[3:]) == 1
    assert str(again) in capsys.readouterr().out


def test_each_request_and_fault_that_is_left_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    example = EXAMPLES[-1]
    planted(example.bug, monkeypatch)
    traffic = traffic_from_seed(example.seed)
    case = shrink(traffic)
    assert case is not None
    fewer = [
        *((tuple(each for each in case.arrivals if each != left), case.faults) for left in case.arrivals),
        *((case.arrivals, tuple(each for each in case.faults if each != left)) for left in case.faults),
    ]
    assert fewer
    for arrivals, faults in fewer:
        failure = failure_of(traffic.only(arrivals, faults))
        assert failure is None or failure.invariant != case.failure.invariant


def test_what_does_not_fail_is_not_reduced() -> None:
    assert shrink(traffic_from_seed(0)) is None
