"""What becomes of usage on its way out of this process."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metering.journal import Journal
from gateway.metering.relay import Relay


class UsageCollector(Collector):
    """Reads the journal's and the relay's counts when somebody asks."""

    def __init__(self, journal: Journal, relay: Relay) -> None:
        self._journal = journal
        self._relay = relay

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def collect(self) -> Iterator[Metric]:
        journal, relay = self._journal, self._relay
        gauges = (
            ("turnpike_journal_writable", "1; 0 while the disk fails or is nearly full and nothing new runs",
             journal.trouble is None),
            ("turnpike_journal_backlog_events", "Events on this machine that have not arrived downstream",
             journal.backlog_events),
            ("turnpike_relay_failing_seconds", "How long every delivery has failed; 0 where all is well",
             relay.failing_s),
        )  # fmt: skip
        counters = (
            ("turnpike_journal_events", "Usage events that this journal has written, ever", journal.last_sequence),
            ("turnpike_journal_commits", "Commits since the start, each for all streams", journal.commits_total),
            ("turnpike_journal_commit_seconds", "Time that they took", journal.commit_ns_total * 1e-9),
            ("turnpike_journal_failures", "Commits that failed", journal.failures_total),
            ("turnpike_relay_delivered_events", "Events that arrived downstream", relay.delivered_total),
            ("turnpike_relay_failures", "Deliveries that failed", relay.failures_total),
        )
        for name, meaning, value in gauges:
            yield GaugeMetricFamily(name, meaning, float(value))
        for name, meaning, value in counters:
            yield CounterMetricFamily(name, meaning, value)
