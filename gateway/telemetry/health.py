"""Prometheus metrics of the process: readiness, health of the engine thread, program version."""

from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class EngineHealth(Protocol):
    """Health of the engine thread."""

    @property
    def alive(self) -> bool:
        """Whether the engine thread completes its steps."""

    @property
    def stuck_steps_total(self) -> int:
        """Steps that the watchdog has given up."""

    @property
    def step_age_seconds(self) -> float:
        """Age of the current step; 0 between steps."""

    @property
    def restarts_total(self) -> int:
        """Engine processes that have ended."""

    @property
    def replays_total(self) -> int:
        """Requests that were submitted again because their engine process had ended."""


class HealthCollector(Collector):
    """Collects health. `ready`: the result of `/readyz`."""

    def __init__(self, ready: Callable[[], bool], engine: Callable[[], EngineHealth]) -> None:
        self._ready = ready
        self._engine = engine

    def describe(self) -> Iterator[Metric]:
        """No names: registering must not need a running engine."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        engine = self._engine()
        build = GaugeMetricFamily("turnpike_build_info", "Constant 1; the label has the version", labels=["version"])
        build.add_metric([version("turnpike")], 1)
        yield build
        yield GaugeMetricFamily("turnpike_ready", "1 while the gateway accepts requests", float(self._ready()))
        yield GaugeMetricFamily("turnpike_engine_healthy", "1 while the engine thread works", float(engine.alive))
        yield CounterMetricFamily(
            "turnpike_engine_stuck_steps", "Steps that exceeded step_timeout_s", engine.stuck_steps_total
        )
        yield GaugeMetricFamily(
            "turnpike_engine_step_age_seconds", "Age of the step under way; 0 between steps", engine.step_age_seconds
        )
        yield CounterMetricFamily(
            "turnpike_engine_restarts", "Engine processes that have ended and were replaced", engine.restarts_total
        )
        yield CounterMetricFamily(
            "turnpike_engine_replayed_requests",
            "Requests submitted again with the tokens that they had, as their engine process had ended",
            engine.replays_total,
        )
