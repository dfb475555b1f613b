"""One clock for the process: real time, or that of a simulation.

This module is imported before any other of the program: functions of `time` that are default arguments somewhere are
bound when their module is imported, and have to be these.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import time_machine

_REAL_MONOTONIC_NS, _REAL_PERF_COUNTER_NS = time.monotonic_ns, time.perf_counter_ns
real_seconds = time.perf_counter
"""The machine's own clock, whatever is simulated."""


class VirtualClock:
    """Monotonic nanoseconds since an arbitrary start, and the time of day that goes with them."""

    START_NS = 1_000_000_000_000

    def __init__(self, start: datetime) -> None:
        self.now_ns = self.START_NS
        self._travel = time_machine.travel(start.astimezone(UTC), tick=False)
        self._day: time_machine.Traveller | None = None

    @property
    def elapsed_s(self) -> float:
        """Since the start of the simulation."""
        return (self.now_ns - self.START_NS) / 1e9

    def advance(self, ns: int) -> None:
        assert ns >= 0, "time goes forward"
        assert self._day is not None
        self.now_ns += ns
        self._day.shift(ns / 1e9)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """For the time of the block it is the process's clock."""
        global _clock
        assert _clock is None, "one simulation at a time"
        self._day = self._travel.start()
        _clock = self
        try:
            yield
        finally:
            _clock = None
            self._travel.stop()


_clock: VirtualClock | None = None


def _monotonic_ns() -> int:
    return _REAL_MONOTONIC_NS() if _clock is None else _clock.now_ns


def _monotonic() -> float:
    return _monotonic_ns() / 1e9


def _perf_counter_ns() -> int:
    return _REAL_PERF_COUNTER_NS() if _clock is None else _clock.now_ns


def _perf_counter() -> float:
    return _perf_counter_ns() / 1e9


time.monotonic, time.monotonic_ns = _monotonic, _monotonic_ns
time.perf_counter, time.perf_counter_ns = _perf_counter, _perf_counter_ns
