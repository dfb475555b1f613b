"""A failing seed is reduced to a small case that fails the same way, with the command that replays it."""

import shlex
from dataclasses import dataclass

import pytest

from engine.simulation.__main__ import main
from engine.simulation.patterns import traffic_from_seed
from engine.simulation.shrink import failure_of, shrink
from engine.simulation.traffic import Traffic
from tests.engine.simulation.plants import planted


@dataclass(frozen=True)
class Example:
    """A bug, a seed that shows it, and the most requests and faults that the reduced case may have."""

    bug: str
    seed: int
    requests: int
    faults: int


EXAMPLES = (
    Example("the hash omits the salt", 30, 3, 0),
    Example("a request preempts one of its class", 35, 8, 0),
    Example("an aborted row is committed", 2, 6, 3),
    Example("a failed step's blocks stay cached", 2, 2, 1),
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.bug)
def test_a_planted_bug_is_reduced(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    traffic = traffic_from_seed(example.seed)
    assert failure_of(traffic) is None
    with planted(example.bug):
        assert_reduced(example, traffic, capsys)


def assert_reduced(example: Example, traffic: Traffic, capsys: pytest.CaptureFixture[str]) -> None:
    whole, case = failure_of(traffic), shrink(traffic)
    assert whole is not None
    assert 0 < len(case.arrivals) <= example.requests < len(traffic.arrivals)
    assert len(case.faults) <= example.faults

    again = failure_of(traffic.only(case.arrivals, case.faults))
    assert again.invariant == case.failure.invariant == whole.invariant
    assert again.step <= 100

    command = str(case.failure).splitlines()[0].partition("again with: ")[2]
    assert main(shlex.split(command)[3:]) == 1
    assert str(again) in capsys.readouterr().out


def test_each_request_and_fault_of_a_reduced_case_is_needed() -> None:
    example = EXAMPLES[-1]
    with planted(example.bug):
        assert_all_needed(example)


def assert_all_needed(example: Example) -> None:
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


def test_traffic_that_does_not_fail_is_not_reduced() -> None:
    assert shrink(traffic_from_seed(0)) is None
