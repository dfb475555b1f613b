"""Outcomes of requests, as the availability objective counts them."""

from collections.abc import Iterator
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class RequestOutcome(StrEnum):
    """`FAILED` is a server error: status 500 or above, of the answer or of a stream's last event."""

    ANSWERED = "answered"
    REFUSED = "refused"
    TURNED_AWAY = "turned_away"
    CLIENT_GONE = "client_gone"
    FAILED = "failed"


class RequestOutcomes(Collector):
    """Counter of outcomes, for one event loop."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(RequestOutcome, 0)

    def note(self, outcome: RequestOutcome) -> None:
        """Count one outcome."""
        self._counts[outcome] += 1

    def describe(self) -> Iterator[Metric]:
        """The names and labels of the metrics."""
        yield from self.collect()

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("turnpike_requests", "Requests under /v1/ by outcome", labels=["outcome"])
        for outcome, count in self._counts.items():
            requests.add_metric([outcome.value], count)
        yield requests
