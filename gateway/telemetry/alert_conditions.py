"""The alerts of `deploy/prometheus/alerts.yml` as one gateway can judge them, from the present values of its metrics.

A rule that compares gauges is judged here, without the time that Prometheus waits before it fires. A rule of rates, of
other processes or of this one's absence needs Prometheus; `NEEDS_PROMETHEUS` says why.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from prometheus_client import CollectorRegistry

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Condition:
    """`metric comparison threshold`. `labels`: values that a sample must have; `without`: values it must not have.
    `times`: a metric that the threshold is a multiple of."""

    alert: str
    severity: str
    summary: str
    metric: str
    comparison: str
    threshold: float
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)
    without: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)
    times: str = ""

    def concerns(self, labels: Mapping[str, str]) -> bool:
        """Whether a sample with these labels counts."""
        return all(labels.get(name) == value for name, value in self.labels.items()) and all(
            labels.get(name) != value for name, value in self.without.items()
        )


_PREMIUM = {"turnpike_class": "premium"}
CONDITIONS = (
    Condition("TurnpikeEngineDown", "page", "The engine has stopped.", "turnpike_engine_healthy", "==", 0),
    Condition("TurnpikeNotReady", "ticket", "The gateway takes no requests.", "turnpike_ready", "==", 0),
    Condition(
        "TurnpikeUpstreamDown", "page", "The server of a model gives no answers.", "turnpike_upstream_up", "==", 0
    ),
    Condition(
        "TurnpikeQueueOld",
        "page",
        "A premium request waits for more than 2 s.",
        "turnpike_class_queue_age_seconds",
        ">",
        2,
        labels=_PREMIUM,
    ),
    Condition(
        "TurnpikeQueueOld",
        "ticket",
        "A request waits for more than a minute.",
        "turnpike_class_queue_age_seconds",
        ">",
        60,
        without=_PREMIUM,
    ),
    Condition(
        "TurnpikeReserveBreached",
        "ticket",
        "KV memory that is reserved for a class is not available.",
        "turnpike_class_kv_blocks_missing",
        ">",
        0,
    ),
    Condition(
        "TurnpikeLimitsDegraded",
        "page",
        "Redis does not answer: limits hold by local shares.",
        "turnpike_limits_breaker_open",
        "==",
        1,
    ),
    Condition(
        "TurnpikeJournalTrouble",
        "page",
        "Usage cannot be written, so no request is served.",
        "turnpike_usage_journal_trouble",
        "==",
        1,
    ),
    Condition(
        "TurnpikeJournalDiskFills",
        "page",
        "The disk of the journal has less than four times the room it needs.",
        "turnpike_usage_journal_free_bytes",
        "<",
        4,
        times="turnpike_usage_journal_needed_bytes",
    ),
    Condition(
        "TurnpikeUsageBacklogOld",
        "ticket",
        "Usage has not left the gateway for 10 minutes.",
        "turnpike_usage_backlog_age_seconds",
        ">",
        600,
    ),
    Condition(
        "TurnpikeBooksDiffer",
        "ticket",
        "The usage store differs from the journal.",
        "turnpike_reconciliation_drift_hours",
        ">",
        0,
    ),
)

NEEDS_PROMETHEUS: Mapping[str, str] = {
    "TurnpikeErrorBudgetBurnsFast": "a rate of failed requests over hours",
    "TurnpikeErrorBudgetBurns": "a rate of failed requests over days",
    "TurnpikePremiumFirstTokenSlow": "a quantile over minutes",
    "TurnpikePremiumTurnedAway": "a rate of refused requests",
    "TurnpikeTenantRefused": "a rate of refused requests",
    "TurnpikeGatewayDown": "a gateway that is down cannot say so",
    "TurnpikeSinkDown": "of the sinks",
    "TurnpikeSinkBehind": "of the sinks",
    "TurnpikeDeadLetters": "of the sinks",
    "TurnpikeUnauthenticatedUsage": "of the sinks",
    "TurnpikeBooksUnchecked": "the age of the last reconciliation",
    "TurnpikePostgresDown": "of the stores' exporters",
    "TurnpikePostgresConnections": "of the stores' exporters",
    "TurnpikeRedisDown": "of the stores' exporters",
    "TurnpikeRedisMemory": "of the stores' exporters",
    "TurnpikeRedisNotPersisted": "of the stores' exporters",
    "TurnpikeKafkaDown": "of the stores' exporters",
    "TurnpikeClickHouseDown": "of the stores' exporters",
    "TurnpikeClickHouseParts": "of the stores' exporters",
    "TurnpikeClickHouseDiskFills": "of the stores' exporters",
    "TurnpikeExporterDown": "of the stores' exporters",
}
"""Alerts that one gateway cannot judge, and what each needs."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A condition and the samples that meet it, each by its labels. `samples`: how many there were to judge; 0: the
    gateway does not have the metric, for example as no Redis is configured."""

    condition: Condition
    samples: int
    met: tuple[tuple[Mapping[str, str], float], ...]


def judge(registry: CollectorRegistry, conditions: Sequence[Condition] = CONDITIONS) -> list[Judged]:
    """Judge each condition by the present samples of the registry."""
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for metric in registry.collect():
        for sample in metric.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return [_judge(condition, samples) for condition in conditions]


def _judge(condition: Condition, samples: Mapping[str, Sequence[tuple[Mapping[str, str], float]]]) -> Judged:
    threshold = condition.threshold
    if condition.times:
        threshold *= sum(value for _, value in samples.get(condition.times, ()))
    judged = [each for each in samples.get(condition.metric, ()) if condition.concerns(each[0])]
    compare = _OPERATORS[condition.comparison]
    return Judged(condition, len(judged), tuple(each for each in judged if compare(each[1], threshold)))
