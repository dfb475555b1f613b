"""Metrics of batches: lines of this process by outcome, and batches of all gateways by state."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.batches.records import OPEN


class BatchMetrics(Collector):
    """`batches`: those that have not ended, by state; as the runner counted them last."""

    def __init__(self) -> None:
        self.lines_running = 0
        self.lines = {"completed": 0, "failed": 0}
        self.batches = dict.fromkeys(sorted(status.value for status in OPEN), 0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A line runs."""
        self.lines_running += 1
        try:
            yield
        finally:
            self.lines_running -= 1

    def record(self, is_error: bool) -> None:
        """A line has a final answer."""
        self.lines["failed" if is_error else "completed"] += 1

    def collect(self) -> Iterable[Metric]:
        """As the library calls it."""
        yield GaugeMetricFamily(
            "turnpike_batch_lines_running", "Lines of batches that this process runs.", self.lines_running
        )
        ended = CounterMetricFamily(
            "turnpike_batch_lines", "Lines of batches that have a final answer, by outcome.", labels=["outcome"]
        )
        for outcome, count in self.lines.items():
            ended.add_metric([outcome], count)
        yield ended
        batches = GaugeMetricFamily("turnpike_batches", "Batches that have not ended, by state.", labels=["status"])
        for status, count in self.batches.items():
            batches.add_metric([status], count)
        yield batches
