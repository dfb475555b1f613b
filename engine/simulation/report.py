"""The result of a simulation: a report, or the failure that ended it."""

import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.simulation.traffic import Traffic

EVENTS_SHOWN = 30
"""The number of last events that a failure shows."""


class SimulationFailure(AssertionError):
    """An invariant was violated. The message has the command that replays it, and the last events.

    `invariant`: the place in the code that detected it, which identifies the violated invariant.
    """

    def __init__(self, traffic: Traffic, step: int, cause: BaseException, events: Iterable[str]) -> None:
        super().__init__(f"{cause!r} in step {step}; again with: {traffic.command}\n  " + "\n  ".join(events))
        self.step = step
        frame = traceback.extract_tb(cause.__traceback__)[-1]
        self.invariant = f"{type(cause).__name__} in {frame.name}, line {frame.lineno}"


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The result of one seed.

    `trace_hash`: covers every plan, block table and delta, in order. `faults`: counts of applied faults, by kind, and
    for requests by the request's state.
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
    adapter_loads: int
    fetched_blocks: int
    virtual_ns: int
    faults: Mapping[str, int]
    trace_hash: str
