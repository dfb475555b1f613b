"""Prometheus metrics of sessions."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_GAUGES = (
    ("open", "turnpike_session_turns_open", "Turns on sessions under way"),
    ("sessions", "turnpike_sessions", "Sessions in this process' memory"),
    ("bytes", "turnpike_session_bytes", "Compressed, in this process' memory"),
)
_COUNTERS = (
    ("evicted", "turnpike_sessions_evicted", "Sessions that made room for others before their time"),
    ("dropped_turns", "turnpike_session_dropped_turns", "Turns that outgrew the window of their session"),
)


class SessionCollector(Collector):
    """`counts` are those of `Sessions`. What a store in Redis holds, Redis knows."""

    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def collect(self) -> Iterator[Metric]:
        counts = dict(self._counts())
        for name, metric, meaning in _GAUGES:
            if name in counts:
                yield GaugeMetricFamily(metric, meaning, counts.pop(name))
        for name, metric, meaning in _COUNTERS:
            if name in counts:
                yield CounterMetricFamily(metric, meaning, counts.pop(name))
        turns = CounterMetricFamily("turnpike_session_turns", "Turns by what became of them", labels=["outcome"])
        for outcome, count in counts.items():
            turns.add_metric([outcome], count)
        yield turns
