"""Prometheus metrics of usage on its way."""

from collections.abc import Callable, Iterator
from dataclasses import fields

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metering.gaps import MissingRange
from gateway.metering.journal import Journal
from gateway.metering.relay import Relay
from gateway.metering.sink import Sink


class RelayCollector(Collector):
    """Of a gateway: its journal, and what it has brought on."""

    def __init__(self, journal: Journal, relay: Relay) -> None:
        self._journal = journal
        self._relay = relay

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def collect(self) -> Iterator[Metric]:
        relay, journal = self._relay, self._journal
        yield GaugeMetricFamily(
            "turnpike_usage_backlog_events", "Events in the journal that have not arrived", relay.backlog_events
        )
        yield GaugeMetricFamily(
            "turnpike_usage_failing_seconds", "How long no delivery has succeeded; 0 is well", relay.failing_s
        )
        yield GaugeMetricFamily(
            "turnpike_usage_journal_trouble", "1 while usage cannot be written", float(journal.trouble is not None)
        )
        yield CounterMetricFamily("turnpike_usage_journalled_events", "Events ever written", journal.last_sequence)
        yield CounterMetricFamily(
            "turnpike_usage_commits", "Since the start, each for all streams", journal.commits_total
        )
        yield CounterMetricFamily("turnpike_usage_commit_seconds", "That they took", journal.commit_ns_total * 1e-9)
        yield CounterMetricFamily("turnpike_usage_commit_failures", "Since the start", journal.failures_total)
        yield CounterMetricFamily("turnpike_usage_delivered_events", "Since the start", relay.delivered_total)
        yield CounterMetricFamily("turnpike_usage_delivery_failures", "Since the start", relay.failures_total)


class SinkCollector(Collector):
    """Of a sink. `missing` is what was last found."""

    def __init__(self, sink: Sink, missing: Callable[[], list[MissingRange]]) -> None:
        self._sink = sink
        self._missing = missing

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def collect(self) -> Iterator[Metric]:
        counts = self._sink.counts
        for each in fields(counts):
            name = each.name.removesuffix("_total")
            yield CounterMetricFamily(f"turnpike_sink_{name}", "Since the start", getattr(counts, each.name))
        yield GaugeMetricFamily("turnpike_sink_held_messages", "Fetched and not yet stored", self._sink.held_messages)
        yield GaugeMetricFamily(
            "turnpike_sink_failing", "1 while usage cannot be brought on", float(self._sink.last_error is not None)
        )
        missing = GaugeMetricFamily(
            "turnpike_usage_missing_events", "Numbers of a source that are not in ClickHouse", labels=["source"]
        )
        by_source: dict[str, int] = {}
        for gap in self._missing():
            by_source[gap.source] = by_source.get(gap.source, 0) + gap.events
        for source, events in by_source.items():
            missing.add_metric([source], events)
        yield missing
