"""Prometheus metrics of refusals."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.refusals.refusal_log import RefusalLog


class RefusalCollector(Collector):
    """Metrics of one gateway's refusals. The label `tenant` is a tenant's name for the first `MAX_LABELLED_TENANTS`
    tenants that are refused, `(other)` for later ones, and `(unknown)` for requests without a key of a tenant."""

    def __init__(self, log: RefusalLog) -> None:
        self._log = log

    def describe(self) -> Iterator[Metric]:
        yield from self.collect()

    def collect(self) -> Iterator[Metric]:
        refused = CounterMetricFamily(
            "turnpike_refused_requests", "Refused requests by tenant and error code", labels=["tenant", "code"]
        )
        for labels, count in list(self._log.refused_total.items()):
            refused.add_metric(labels, count)
        yield refused
        yield CounterMetricFamily(
            "turnpike_refusals_dropped",
            "Refused requests missing in the analytics store, as it was away for too long or rejected them",
            self._log.dropped_total,
        )
        yield GaugeMetricFamily(
            "turnpike_refusals_unstored",
            "Refused requests that the analytics store has not acknowledged",
            self._log.unstored_requests,
        )
