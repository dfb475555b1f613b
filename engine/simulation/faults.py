"""Draws the faults of a simulation."""

from collections.abc import Sequence
from random import Random

from engine.simulation.traffic import TICK_NS, Fault, FaultKind

_SECOND_NS = 1_000_000_000
_STORM = 0.3
"""The fraction of the maximum number of requests that an abort storm ends."""
_MAX_FAULTS = 60
_APART = (FaultKind.SHORTAGE, FaultKind.PAUSE)
"""Drawn separately: see `draw_shortages`, for devices with limited memory, and `draw_pauses`."""
_EVERYWHERE = tuple(kind for kind in FaultKind if kind not in _APART)


def draw_faults(rng: Random, until_ns: int) -> tuple[Fault, ...]:
    """Faults of some kinds, or none, at the times of a Poisson process, in order of time."""
    kinds = rng.choice(
        (
            (),
            (FaultKind.ABORT, FaultKind.PREEMPT, FaultKind.PREEMPT, FaultKind.FAILURE),
            (FaultKind.HANG, FaultKind.SLOW, FaultKind.STILL, FaultKind.JUMP),
            _EVERYWHERE,
            (FaultKind.ABORT,),
        )
    )
    if not kinds:
        return ()
    pause_ticks = rng.choice((5.0, 50.0))
    faults: list[Fault] = []
    at_ns = _pause_ns(rng, pause_ticks)
    while at_ns < until_ns and len(faults) < _MAX_FAULTS:
        kind = rng.choice(kinds)
        storm = kind is FaultKind.ABORT and rng.random() < 0.1
        faults += _storm(rng, at_ns) if storm else [_fault(rng, at_ns, kind)]
        at_ns += _pause_ns(rng, pause_ticks)
    return tuple(faults)


def draw_shortages(rng: Random, until_ns: int) -> tuple[Fault, ...]:
    """Shortages of device memory, each with the largest step that fits. In order of time."""
    faults: list[Fault] = []
    at_ns = _pause_ns(rng, 15.0)
    while at_ns < until_ns and len(faults) < _MAX_FAULTS:
        faults.append(
            Fault(
                at_ns=at_ns,
                kind=FaultKind.SHORTAGE,
                in_flight=rng.random() < 0.5,
                steps=rng.choice((1, 3, 20)),
                tokens=rng.choice((1, 2, 4, 8, 16)),
            )
        )
        at_ns += _pause_ns(rng, 15.0)
    return tuple(faults)


def draw_pauses(rng: Random, until_ns: int) -> tuple[Fault, ...]:
    """Clients that stop reading for a few steps or for minutes, sometimes many at once. In order of time."""
    faults: list[Fault] = []
    pause_ticks = rng.choice((2.0, 10.0, 50.0))
    at_ns = _pause_ns(rng, pause_ticks)
    while at_ns < until_ns and len(faults) < _MAX_FAULTS:
        for _ in range(20 if rng.random() < 0.05 else 1):
            faults.append(
                Fault(
                    at_ns=at_ns,
                    kind=FaultKind.PAUSE,
                    rank=rng.randrange(100),
                    in_flight=rng.random() < 0.5,
                    ns=rng.choice((1, 10, 100, 20_000)) * TICK_NS,
                )
            )
        at_ns += _pause_ns(rng, pause_ticks)
    return tuple(faults)


def _pause_ns(rng: Random, ticks: float) -> int:
    return int(rng.expovariate(1 / ticks) * TICK_NS)


def _fault(rng: Random, at_ns: int, kind: FaultKind) -> Fault:
    return Fault(
        at_ns=at_ns,
        kind=kind,
        rank=rng.randrange(100),
        in_flight=rng.random() < 0.5,
        ns=rng.choice((1, 30, 61, 600)) * _SECOND_NS,
        steps=rng.choice((1, 5, 20)),
    )


def _storm(rng: Random, at_ns: int) -> Sequence[Fault]:
    """Many clients disconnect at the same time."""
    return [_fault(rng, at_ns, FaultKind.ABORT) for _ in range(int(_STORM * 20))]
