"""Prometheus metrics of sessions."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.sessions.sessions import SessionCounts


class SessionCollector(Collector):
    """Collects turns and cuts and, for a store in this process, its contents. Redis has metrics of its own."""

    def __init__(self, counts: Callable[[], SessionCounts]) -> None:
        self._counts = counts

    def describe(self) -> Iterator[Metric]:
        """No names, so registering does not call `collect`."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        counts = self._counts()
        yield GaugeMetricFamily("turnpike_session_turns_open", "Open turns on sessions", counts.open)
        turns = CounterMetricFamily("turnpike_session_turns", "Turns by outcome", labels=["outcome"])
        for outcome, count in counts.outcomes.items():
            turns.add_metric([outcome.value], count)
        yield turns
        cuts = CounterMetricFamily("turnpike_session_cuts", "Conversations cut to their window", labels=["how"])
        for cut, count in counts.cuts.items():
            cuts.add_metric([cut.value], count)
        yield cuts
        if counts.store:
            yield GaugeMetricFamily("turnpike_sessions", "Sessions in this process' memory", counts.store["sessions"])
            yield GaugeMetricFamily(
                "turnpike_session_bytes", "Compressed bytes of sessions in this process' memory", counts.store["bytes"]
            )
            yield CounterMetricFamily(
                "turnpike_sessions_evicted", "Sessions evicted before their expiry", counts.store["evicted"]
            )
