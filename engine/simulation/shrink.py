"""Reduces a failing run to a minimal set of requests and faults that violate the same invariant."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.simulation.report import SimulationFailure
from engine.simulation.simulator import simulate_traffic
from engine.simulation.traffic import Traffic

MAX_RUNS = 400


@dataclass(frozen=True, slots=True)
class ReducedCase:
    """The remaining requests and faults, by index in the seed's traffic, and their failure. `runs`: reduction runs."""

    arrivals: tuple[int, ...]
    faults: tuple[int, ...]
    failure: SimulationFailure
    runs: int


def failure_of(traffic: Traffic) -> SimulationFailure | None:
    """The failure of the traffic with all checks after each call; None if it does not fail."""
    try:
        simulate_traffic(traffic, check_every=1)
    except SimulationFailure as failure:
        return failure
    return None


def shrink(traffic: Traffic) -> ReducedCase | None:
    """Drop faults, then requests, repeatedly, while the same invariant is violated. None: the traffic does not fail.

    A reduced case that violates another invariant does not count, as it would not explain the first failure.
    """
    first = failure_of(traffic)
    if first is None:
        return None
    case = _Case(traffic, first)
    left = 0
    while left != len(case.arrivals) + len(case.faults):
        left = len(case.arrivals) + len(case.faults)
        case.faults = _fewest(case.faults, lambda kept: case.still_fails(case.arrivals, kept))
        case.arrivals = _fewest(case.arrivals, lambda kept: case.still_fails(kept, case.faults))
    return ReducedCase(tuple(case.arrivals), tuple(case.faults), case.failure, case.runs)


class _Case:
    """The smallest case so far."""

    def __init__(self, traffic: Traffic, failure: SimulationFailure) -> None:
        self._traffic = traffic
        self.arrivals: Sequence[int] = range(len(traffic.arrivals))
        self.faults: Sequence[int] = range(len(traffic.faults))
        self.failure = failure
        self.runs = 0

    def still_fails(self, arrivals: Sequence[int], faults: Sequence[int]) -> bool:
        if self.runs >= MAX_RUNS:
            return False
        self.runs += 1
        failure = failure_of(self._traffic.only(arrivals, faults))
        if failure is None or failure.invariant != self.failure.invariant:
            return False
        self.failure = failure
        return True


def _fewest(items: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> Sequence[int]:
    """Delta debugging (ddmin, complements only: Zeller and Hildebrandt 2002, Simplifying and Isolating Failure-Inducing
    Input): leave out smaller and smaller parts while it still fails."""
    if not items or fails(()):
        return ()
    parts = 2
    while len(items) > 1:
        size = -(-len(items) // parts)
        for start in range(0, len(items), size):
            kept = (*items[:start], *items[start + size :])
            if kept and fails(kept):
                items, parts = kept, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(items))
    return items
