"""Makes a failing run small: the fewest requests and faults that break the same invariant."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.simulation.report import SimulationFailure
from engine.simulation.simulator import simulate_traffic
from engine.simulation.traffic import Traffic

MOST_TRIALS = 400


@dataclass(frozen=True, slots=True)
class ReducedCase:
    """The requests and faults that are left, by their index in the seed's traffic, and how they fail."""

    arrivals: tuple[int, ...]
    faults: tuple[int, ...]
    failure: SimulationFailure
    trials: int


def failure_of(traffic: Traffic) -> SimulationFailure | None:
    """How the traffic fails when the whole state is checked after each call, if it does."""
    try:
        simulate_traffic(traffic, check_every=1)
    except SimulationFailure as failure:
        return failure
    return None


def shrink(traffic: Traffic) -> ReducedCase | None:
    """Drop faults, then requests, and again, as long as the same invariant breaks. None: nothing breaks.

    Another failure than the first one's is no success: a reduced case that fails otherwise explains nothing.
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
    return ReducedCase(tuple(case.arrivals), tuple(case.faults), case.failure, case.trials)


class _Case:
    """The smallest case so far."""

    def __init__(self, traffic: Traffic, failure: SimulationFailure) -> None:
        self._traffic = traffic
        self.arrivals: Sequence[int] = range(len(traffic.arrivals))
        self.faults: Sequence[int] = range(len(traffic.faults))
        self.failure = failure
        self.trials = 0

    def still_fails(self, arrivals: Sequence[int], faults: Sequence[int]) -> bool:
        if self.trials >= MOST_TRIALS:
            return False
        self.trials += 1
        failure = failure_of(self._traffic.only(arrivals, faults))
        if failure is None or failure.invariant != self.failure.invariant:
            return False
        self.failure = failure
        return True


def _fewest(items: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> Sequence[int]:
    """Delta debugging (Zeller's ddmin, complements only): leave out parts, ever smaller, while it goes on failing."""
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
