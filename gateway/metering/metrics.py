"""Prometheus metrics of the usage pipeline."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metering.journal.journal import Journal
from gateway.metering.reconciliation.gaps import MissingRange
from gateway.metering.reconciliation.reconciliation_monitor import ReconciliationMonitor
from gateway.metering.relay.relay import Relay
from gateway.metering.sink.message_source import Partition
from gateway.metering.sink.sink import Sink


class RelayCollector(Collector):
    """Metrics of a gateway's journal and relay."""

    def __init__(self, journal: Journal, relay: Relay) -> None:
        self._journal = journal
        self._relay = relay

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def collect(self) -> Iterator[Metric]:
        relay, journal = self._relay, self._journal
        yield GaugeMetricFamily(
            "turnpike_usage_backlog_events", "Events in the journal that are not delivered", relay.backlog_events
        )
        yield GaugeMetricFamily(
            "turnpike_usage_backlog_age_seconds", "Age of the oldest event that is not delivered", relay.backlog_age_s
        )
        yield GaugeMetricFamily(
            "turnpike_usage_failing_seconds",
            "Time since deliveries started to fail; 0 if they succeed",
            relay.failing_s,
        )
        yield GaugeMetricFamily(
            "turnpike_usage_journal_trouble",
            "1 while the journal cannot be written",
            float(journal.trouble is not None),
        )
        yield GaugeMetricFamily(
            "turnpike_usage_journal_free_bytes", "Free bytes of the journal's disk", journal.free_bytes
        )
        yield GaugeMetricFamily(
            "turnpike_usage_journal_needed_bytes",
            "Free bytes below which new requests are rejected",
            journal.min_free_bytes,
        )
        yield CounterMetricFamily(
            "turnpike_usage_journalled_events",
            "Events written to the journal since it was created",
            journal.last_sequence,
        )
        yield CounterMetricFamily("turnpike_usage_commits", "Group commits since the start", journal.commits_total)
        yield CounterMetricFamily(
            "turnpike_usage_commit_seconds", "Duration of group commits", journal.commit_ns_total * 1e-9
        )
        yield CounterMetricFamily(
            "turnpike_usage_commit_failures", "Failed commits since the start", journal.failures_total
        )
        yield CounterMetricFamily(
            "turnpike_usage_delivered_events", "Events delivered since the start", relay.delivered_total
        )
        yield CounterMetricFamily(
            "turnpike_usage_delivery_failures", "Failed deliveries since the start", relay.failures_total
        )


class BooksCollector(Collector):
    """Metrics of a gateway's last reconciliation check: differences between its journal and the usage store."""

    def __init__(self, watch: ReconciliationMonitor) -> None:
        self._watch = watch

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def collect(self) -> Iterator[Metric]:
        watch, drift = self._watch, self._watch.drift
        events = GaugeMetricFamily(
            "turnpike_reconciliation_drift_events",
            "Events that differ between the journal and the store",
            labels=["kind"],
        )
        for kind in ("missing", "doubled", "altered"):
            events.add_metric([kind], getattr(drift, kind))
        yield events
        yield GaugeMetricFamily(
            "turnpike_reconciliation_drift_hours",
            "Hours whose sums differ between the journal and the store",
            drift.hours,
        )
        yield GaugeMetricFamily(
            "turnpike_reconciliation_checked_timestamp_seconds",
            "Unix time of the end of the last check, or 0",
            watch.checked_s,
        )
        yield CounterMetricFamily("turnpike_reconciliation_failures", "Failed checks", watch.failures_total)


class KnownGaps(Protocol):
    @property
    def missing(self) -> Sequence[MissingRange]:
        """Ranges of sequences that the store lacks."""


class KnownLag(Protocol):
    @property
    def behind(self) -> Mapping[Partition, int]:
        """Number of unfetched messages of each partition."""


class SinkCollector(Collector):
    """Metrics of a sink and of its last checks. Before `started` the sink cannot use its store."""

    def __init__(self, sink: Sink, gaps: KnownGaps, lag: KnownLag, started: Callable[[], bool]) -> None:
        self._sink = sink
        self._gaps = gaps
        self._lag = lag
        self._started = started

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def collect(self) -> Iterator[Metric]:
        counts = self._sink.counts
        for each in fields(counts):
            name = each.name.removesuffix("_total")
            yield CounterMetricFamily(f"turnpike_sink_{name}", "Since the start", getattr(counts, each.name))
        yield GaugeMetricFamily(
            "turnpike_sink_held_messages", "Messages that are fetched and not stored", self._sink.held_messages
        )
        yield from self._behind()
        failing = not self._started() or self._sink.last_error is not None
        yield GaugeMetricFamily("turnpike_sink_failing", "1 while the sink cannot fetch or store usage", float(failing))
        missing = GaugeMetricFamily(
            "turnpike_usage_missing_events", "Sequences of a source that ClickHouse lacks", labels=["source"]
        )
        by_source: dict[str, int] = {}
        for gap in self._gaps.missing:
            by_source[gap.source] = by_source.get(gap.source, 0) + gap.events
        for source, events in by_source.items():
            missing.add_metric([source], events)
        yield missing

    def _behind(self) -> Iterator[Metric]:
        behind, held, oldest_ms = self._lag.behind, self._sink.held_by_partition, self._sink.oldest_ms
        messages = GaugeMetricFamily(
            "turnpike_sink_lag_messages", "Messages of an assigned partition that are not stored", labels=["partition"]
        )
        for place, count in behind.items():
            messages.add_metric([str(place.number)], count + held.get(place, 0))
        yield messages
        lag_s = 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)
        yield GaugeMetricFamily(
            "turnpike_sink_lag_seconds", "Age of the oldest message that is fetched and not stored", lag_s
        )
