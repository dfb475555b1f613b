"""Is every request in the books, once, as it was? From the journal over Kafka to ClickHouse."""

from deploy.grafana.generate.panels import SQL, Dashboard, Form, Panel, PromQL, Row, Threshold
from deploy.grafana.generate.promql import INSTANCES, chosen, most, named, rate, share, total

_ANY = (Threshold(1),)
_COMMIT_SECONDS = total(rate(chosen("turnpike_usage_commit_seconds_total")), "instance")
_COMMITS = total(rate(chosen("turnpike_usage_commits_total")), "instance")
_CHECKED = chosen("turnpike_reconciliation_checked_timestamp_seconds")
_STARTED = chosen("process_start_time_seconds")


def _each(metric: str, legend: str) -> PromQL:
    """A line for each gateway."""
    return PromQL(chosen(metric), legend)


_EVENTS_AND_SUMS = SQL("""\
SELECT time, series, amount FROM
(
    SELECT time, 'events' AS series, toInt64(count()) AS amount
    FROM (SELECT $__timeInterval(occurred_at) AS time FROM usage_events FINAL WHERE $__timeFilter(occurred_at))
    GROUP BY time
    UNION ALL
    SELECT $__timeInterval(bucket) AS time, 'sums' AS series, toInt64(sum(events)) AS amount
    FROM usage_by_minute WHERE $__timeFilter(bucket)
    GROUP BY time
)
ORDER BY time, series""")

_JOURNALS = SQL("""\
SELECT source AS "journal", toInt64(uniqExact(sequence)) AS "numbers",
    toInt64(min(sequence)) AS "first", toInt64(max(sequence)) AS "last",
    toInt64(max(sequence) - min(sequence) + 1 - uniqExact(sequence)) AS "holes",
    toInt64(count() - uniqExact(event_id)) AS "copies not merged", max(occurred_at) AS "newest"
FROM usage_events WHERE $__timeFilter(occurred_at)
GROUP BY journal ORDER BY journal""")

_DEAD_LETTERS = SQL("""\
SELECT received_at AS "received", topic, partition, offset, reason, substring(payload, 1, 200) AS "begins"
FROM usage_dead_letters FINAL WHERE $__timeFilter(received_at)
ORDER BY received_at DESC, topic, partition, offset LIMIT 100""")

_RECONCILIATION = Row(
    "Reconciliation",
    (
        Panel(
            title="Events that differ",
            form=Form.STAT,
            unit="short",
            queries=(PromQL(total(chosen("turnpike_reconciliation_drift_events"), "kind"), named("kind")),),
            meaning="Of the last check of each journal against ClickHouse: not there, there as two, or not the same.",
            bad="anything but 0. `turnpike reconcile` names each event; bills wait until it is understood.",
            runbook="TurnpikeBooksDiffer",
            thresholds=_ANY,
        ),
        Panel(
            title="Hours that differ",
            form=Form.STAT,
            unit="short",
            queries=(PromQL(total(chosen("turnpike_reconciliation_drift_hours"))),),
            meaning="Hours in which the journal's sums are not those of ClickHouse and what is under way.",
            bad="anything but 0.",
            runbook="TurnpikeBooksDiffer",
            width=4,
            thresholds=_ANY,
        ),
        Panel(
            title="Numbers that are missing",
            form=Form.STAT,
            unit="short",
            queries=(PromQL(f"{most('turnpike_usage_missing_events')} or vector(0)"),),
            meaning="A journal numbers its events 1, 2, 3 ...: numbers that sinks have found to be missing in "
            "ClickHouse.",
            bad="anything but 0 for longer than usage is under way.",
            runbook="TurnpikeBooksDiffer",
            width=4,
            thresholds=_ANY,
        ),
        Panel(
            title="Since the last check",
            form=Form.LINES,
            unit="s",
            queries=(
                PromQL(f"time() - ({_CHECKED} > 0 or {_STARTED} and on (instance) {_CHECKED})", named("instance")),
            ),
            meaning="Each gateway checks its journal every `reconcile_every_s`. Before the first, since its start.",
            bad="a rise beyond some minutes: checks fail, ClickHouse does not answer.",
            runbook="TurnpikeBooksUnchecked",
        ),
        Panel(
            title="Checks that failed",
            form=Form.BARS,
            unit="ops",
            queries=(PromQL(rate(chosen("turnpike_reconciliation_failures_total")), named("instance")),),
            meaning="Checks that could not be made.",
            bad="steady ones: see the log.",
            runbook="TurnpikeBooksUnchecked",
        ),
        Panel(
            title="Events and the sums of them",
            form=Form.LINES,
            unit="short",
            queries=(_EVENTS_AND_SUMS,),
            meaning="Events in ClickHouse, each once, and what the sums by minute say of them. The edges of the span "
            "are counted to the second in one and to the minute in the other.",
            bad="two lines that part in the middle: events came twice, and the sums have not been corrected yet.",
        ),
        Panel(
            title="Journals as ClickHouse has them",
            form=Form.TABLE,
            unit="short",
            queries=(_JOURNALS,),
            meaning="By the journal that numbered the events. A hole may be an event of another hour: a request that "
            "was interrupted is numbered when its gateway starts again. Copies are counted once.",
            bad="holes that last.",
            runbook="TurnpikeBooksDiffer",
            width=24,
            height=6,
            columns={"newest": "dateTimeAsIso"},
        ),
    ),
)

_JOURNAL = Row(
    "Journal",
    (
        Panel(
            title="Events that wait for delivery",
            form=Form.LINES,
            unit="short",
            queries=(_each("turnpike_usage_backlog_events", named("instance")),),
            meaning="In the journal, and not yet in Kafka or ClickHouse.",
            bad="a rise: the other end is away or refuses, the log of `turnpike.relay` says why. About 1 KB each.",
            runbook="TurnpikeUsageBacklogOld",
        ),
        Panel(
            title="Age of the oldest of them",
            form=Form.LINES,
            unit="s",
            queries=(_each("turnpike_usage_backlog_age_seconds", named("instance")),),
            meaning="How late usage is, at the worst.",
            bad="minutes.",
            runbook="TurnpikeUsageBacklogOld",
        ),
        Panel(
            title="No delivery for",
            form=Form.LINES,
            unit="s",
            queries=(_each("turnpike_usage_failing_seconds", named("instance")),),
            meaning="How long no delivery has succeeded; 0 is well.",
            bad="a straight rise.",
            runbook="TurnpikeUsageBacklogOld",
        ),
        Panel(
            title="Written and delivered",
            form=Form.LINES,
            unit="ops",
            queries=(
                PromQL(total(rate(chosen("turnpike_usage_journalled_events_total"))), "written"),
                PromQL(total(rate(chosen("turnpike_usage_delivered_events_total"))), "delivered"),
                PromQL(total(rate(chosen("turnpike_usage_delivery_failures_total"))), "failures of delivery"),
            ),
            meaning="Events a second.",
            bad="lines that part.",
            width=6,
        ),
        Panel(
            title="A commit",
            form=Form.LINES,
            unit="s",
            queries=(PromQL(share(_COMMIT_SECONDS, _COMMITS), named("instance")),),
            meaning="How long writing to the disk takes, for all streams at once. The end of each answer waits for "
            "one.",
            bad="over some 50 ms: a slow disk, or one that others use.",
            width=6,
        ),
        Panel(
            title="Trouble",
            form=Form.LINES,
            unit="short",
            queries=(
                _each("turnpike_usage_journal_trouble", f"{named('instance')} cannot write"),
                PromQL(
                    rate(chosen("turnpike_usage_commit_failures_total")), f"{named('instance')} commits that failed"
                ),
            ),
            meaning="1 while usage cannot be written; new requests get 503 then.",
            bad="anything but 0: the disk fails or is nearly full.",
            runbook="TurnpikeJournalTrouble",
            width=6,
        ),
        Panel(
            title="Room on the disk",
            form=Form.LINES,
            unit="bytes",
            queries=(
                _each("turnpike_usage_journal_free_bytes", f"{named('instance')} free"),
                _each("turnpike_usage_journal_needed_bytes", f"{named('instance')} needed"),
            ),
            meaning="Of the journal's disk. With less than is needed nothing new is begun.",
            bad="lines that meet.",
            runbook="TurnpikeJournalDiskFills",
            width=6,
        ),
    ),
)

_SINK = Row(
    "Sink",
    (
        Panel(
            title="Messages behind",
            form=Form.STACK,
            unit="short",
            queries=(PromQL(most("turnpike_sink_lag_messages", "partition"), f"partition {named('partition')}"),),
            meaning="Between the end of each of Kafka's partitions and what is stored.",
            bad="a rise: no sink runs, or ClickHouse refuses.",
            runbook="TurnpikeSinkBehind",
            width=6,
        ),
        Panel(
            title="Age of what is not stored",
            form=Form.LINES,
            unit="s",
            queries=(PromQL("turnpike_sink_lag_seconds", named("instance")),),
            meaning="Of the oldest message that a sink has fetched.",
            bad="minutes.",
            runbook="TurnpikeSinkBehind",
            width=6,
        ),
        Panel(
            title="Stored",
            form=Form.LINES,
            unit="ops",
            queries=(PromQL(rate("turnpike_sink_events_total"), named("instance")),),
            meaning="Events a second, by sink.",
            bad="nothing while messages lie in Kafka.",
            runbook="TurnpikeSinkDown",
            width=6,
        ),
        Panel(
            title="Failing",
            form=Form.LINES,
            unit="short",
            queries=(
                PromQL("turnpike_sink_failing", f"{named('instance')} fails"),
                PromQL(rate("turnpike_sink_failures_total"), f"{named('instance')} failures a second"),
                PromQL("turnpike_sink_held_messages", f"{named('instance')} holds"),
            ),
            meaning="1 while a sink cannot go on; what it has fetched and not stored.",
            bad="1 for minutes: its log says what Kafka or ClickHouse answers.",
            runbook="TurnpikeSinkBehind",
            width=6,
        ),
        Panel(
            title="Dead letters",
            form=Form.TABLE,
            unit="short",
            queries=(_DEAD_LETTERS,),
            meaning="What came through the topic and was no usage, the newest hundred. Nothing is lost: it lies here.",
            bad="any: another producer writes to the topic, or a gateway is newer than its sink.",
            runbook="TurnpikeDeadLetters",
            width=24,
            columns={"received": "dateTimeAsIso"},
        ),
    ),
)

DASHBOARD = Dashboard(
    slug="books",
    title="Books",
    question="Is every request in the books, once, as it was?",
    rows=(_RECONCILIATION, _JOURNAL, _SINK),
    variables=(INSTANCES,),
    refresh="30s",
    period="6h",
)
