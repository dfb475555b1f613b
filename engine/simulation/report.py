"""What comes of a simulation: a report, or the failure that ended it."""

import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.simulation.traffic import Traffic

EVENTS_SHOWN = 30
"""The last so many events of a run that failed."""


class SimulationFailure(AssertionError):
    """An invariant broke. Says how to run it again, and what came just before.

    `invariant` is the place in the code that noticed: runs that break the same one have it in common.
    """

    def __init__(self, traffic: Traffic, step: int, cause: BaseException, events: Iterable[str]) -> None:
        super().__init__(f"{cause!r} in step {step}; again with: {traffic.command}\n  " + "\n  ".join(events))
        self.step = step
        frame = traceback.extract_tb(cause.__traceback__)[-1]
        self.invariant = f"{type(cause).__name__} in {frame.name}, line {frame.lineno}"


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """What came of one seed. `trace_hash` covers every plan, every block table and every delta, in order.

    `faults` counts what struck: aborts by where the request stood, the others by kind.
    """

    seed: int
    pattern: str
    steps: int
    requests: int
    preemptions: int
    cached_tokens: int
    failures: int
    wasted_rows: int
    accepted_drafts: int
    rejected_drafts: int
    virtual_ns: int
    faults: Mapping[str, int]
    trace_hash: str
