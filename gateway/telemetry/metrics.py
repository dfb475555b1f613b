"""The gateway's Prometheus metrics.

Names and buckets are OpenTelemetry's for generative AI where it has them (semantic conventions, gen-ai-metrics), in
Prometheus' spelling; others are `turnpike_*`. Label values are closed sets: a model is a served one, never a client's
string.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.telemetry.outcomes import RequestOutcomes

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_MODEL = "gen_ai_request_model"
_CLASS = "turnpike_class"
_PROPOSER = "turnpike_proposer"
_REQUEST_BUCKETS_S = tuple(0.01 * 2**n for n in range(14))
# fmt: off
_FIRST_TOKEN_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0,
)
# fmt: on
_OUTPUT_TOKEN_BUCKETS_S = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKEN_BUCKETS = tuple(4**n for n in range(14))


class ClassStats(Protocol):
    """Counts of one service class of a model. Names in `_ns` are nanoseconds."""

    @property
    def name(self) -> str:
        """Name of the class."""

    @property
    def running(self) -> int:
        """Sequences that take part in steps."""

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""

    @property
    def queue_age_ns(self) -> int:
        """Age of the oldest queued sequence."""

    @property
    def held_blocks(self) -> int:
        """KV blocks that its sequences hold."""

    @property
    def reserved_blocks(self) -> int:
        """Unused part of its reserve of KV blocks."""

    @property
    def cached_blocks(self) -> int:
        """Free KV blocks with content that it used last."""

    @property
    def missing_blocks(self) -> int:
        """Reserved KV blocks that are not available; 0, or the engine has a fault."""

    @property
    def attributed_ns(self) -> int:
        """Its share of the time of all steps."""

    @property
    def recompute_ns(self) -> int:
        """The part of it spent on recomputation."""

    @property
    def recomputed_tokens(self) -> int:
        """Tokens recomputed after preemptions that it caused."""

    @property
    def preemptions_caused(self) -> int:
        """Sequences preempted for it."""

    @property
    def preemptions_suffered(self) -> int:
        """Its sequences that were preempted."""

    @property
    def active_tenants(self) -> int:
        """Tenants served in the last 60 s or waiting now."""

    @property
    def fairness(self) -> float:
        """Jain's fairness index over its active tenants (Jain, Chiu and Hawe, 1984), in [1/n, 1]."""

    @property
    def wasted_rows(self) -> int:
        """Rows of steps whose result was discarded."""

    @property
    def wasted_ns(self) -> int:
        """Time spent on those rows."""

    @property
    def itl_limited_steps(self) -> int:
        """Steps whose prefill was cut for its inter-token latency target."""


class DraftStats(Protocol):
    """One proposer's drafts for one service class; `depth` and `acceptance` are means of the latest steps."""

    @property
    def proposer(self) -> str:
        """Name of the proposer."""

    @property
    def service_class(self) -> str:
        """Name of the class."""

    @property
    def depth(self) -> float:
        """Largest number of drafts per request, mean over the latest steps."""

    @property
    def proposed_total(self) -> int:
        """Draft tokens proposed and verified."""

    @property
    def accepted_total(self) -> int:
        """Draft tokens accepted."""

    @property
    def acceptance(self) -> float:
        """Acceptance rate of the latest drafts, in [0, 1]."""


class SpeculationStats(Protocol):
    """Speculative decoding of one model."""

    @property
    def saved_ns(self) -> int:
        """Predicted time saved by drafts so far, in nanoseconds; it falls where they do not pay."""

    @property
    def drafting_ns(self) -> Mapping[str, int]:
        """Time spent on drafts, in nanoseconds, by proposer."""

    @property
    def drafts(self) -> Sequence[DraftStats]:
        """Counts by proposer and service class."""


class ModelStats(Protocol):
    """The scheduler's counts for one model: those in `_total` since it was loaded, the others current."""

    @property
    def running(self) -> int:
        """Sequences that take part in steps."""

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""

    @property
    def paused(self) -> int:
        """Sequences paused by backpressure."""

    @property
    def num_blocks(self) -> int:
        """KV blocks."""

    @property
    def free_blocks(self) -> int:
        """KV blocks that no sequence holds; cached ones count as free."""

    @property
    def steps_total(self) -> int:
        """Forward passes."""

    @property
    def scheduled_tokens_total(self) -> int:
        """Tokens computed, of prompts and answers."""

    @property
    def cached_tokens_total(self) -> int:
        """Prompt tokens found in the prefix cache."""

    @property
    def pauses_total(self) -> int:
        """Pauses by backpressure."""

    @property
    def paused_ns_total(self) -> int:
        """Duration of pauses that are over, in nanoseconds."""

    @property
    def preemptions_total(self) -> int:
        """Preempted sequences."""

    @property
    def failures_total(self) -> int:
        """Sequences that ended in an error of the engine."""

    @property
    def classes(self) -> Sequence[ClassStats]:
        """Counts by service class."""

    @property
    def speculation(self) -> SpeculationStats | None:
        """Counts of drafts; None: the model has no drafts."""


class Metrics:
    """All metrics, in a registry of their own. Durations are in seconds."""

    def __init__(
        self,
        engine_stats: Callable[[], Mapping[str, ModelStats]],
        admission_counts: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(EngineCollector(engine_stats))
        self.registry.register(AdmissionCollector(admission_counts))
        self.outcomes = RequestOutcomes()
        self.registry.register(self.outcomes)
        served = ["gen_ai_operation_name", _MODEL, "turnpike_tier"]
        self.request_duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "Time from the last byte of the request to the last byte of the answer; error_type is empty on success",
            [*served, "error_type"],
            buckets=_REQUEST_BUCKETS_S,
            registry=self.registry,
        )
        self.time_to_first_token = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "Time from the last byte of the request to the first token",
            served,
            buckets=_FIRST_TOKEN_BUCKETS_S,
            registry=self.registry,
        )
        self.time_per_output_token = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time per token after the first, one observation per choice",
            served,
            buckets=_OUTPUT_TOKEN_BUCKETS_S,
            registry=self.registry,
        )
        self.inter_token = Histogram(
            "turnpike_inter_token_seconds",
            "Time between two deltas of a choice with tokens, as the gateway passes them to a stream",
            served,
            buckets=_OUTPUT_TOKEN_BUCKETS_S,
            registry=self.registry,
        )
        self.token_usage = Histogram(
            "gen_ai_client_token_usage",
            "Tokens per request; gen_ai_token_type is input or output",
            [*served, "gen_ai_token_type"],
            buckets=_TOKEN_BUCKETS,
            registry=self.registry,
        )

        self.sheds = Counter(
            "turnpike_class_sheds",
            "Requests rejected with 429 or 503 before any work, by error code: overloaded for the predicted wait, "
            "others for limits",
            [_MODEL, _CLASS, "reason"],
            registry=self.registry,
        )

        self.routed = Counter(
            "turnpike_routed_requests",
            "Requests by the model that answered and the reason of its selection",
            [_MODEL, "reason"],
            registry=self.registry,
        )
        self.all_large_dollars = Counter(
            "turnpike_route_all_large_dollars",
            "Cost of completed answers if the large model had generated them all, by large model",
            [_MODEL],
            registry=self.registry,
        )
        self.saved_dollars = Counter(
            "turnpike_route_saved_dollars",
            "Part of that cost saved by small models, by the large model that they replaced",
            [_MODEL],
            registry=self.registry,
        )

    def render(self) -> bytes:
        """The response body of `/metrics`, of `CONTENT_TYPE`."""
        return generate_latest(self.registry)


_ENGINE_GAUGES = (
    ("running", "turnpike_sequences_running", "Running sequences"),
    ("waiting", "turnpike_sequences_waiting", "Waiting sequences"),
    ("paused", "turnpike_sequences_paused", "Sequences paused because their client does not read"),
    ("num_blocks", "turnpike_kv_blocks", "Blocks of KV memory in total"),
    ("free_blocks", "turnpike_kv_blocks_free", "Blocks not held by a sequence; cached prefixes count as free"),
)
_ENGINE_COUNTERS = (
    ("steps_total", "turnpike_steps", "Forward passes"),
    ("scheduled_tokens_total", "turnpike_scheduled_tokens", "Tokens computed, of prompts and answers"),
    ("cached_tokens_total", "turnpike_prefix_hit_tokens", "Prompt tokens found in the prefix cache"),
    ("preemptions_total", "turnpike_preemptions", "Preemptions of sequences"),
    ("pauses_total", "turnpike_pauses", "Pauses of sequences because their client did not read"),
    ("failures_total", "turnpike_failures", "Sequences that ended with an engine error"),
)
_ENGINE_SECONDS = (("paused_ns_total", "turnpike_paused_seconds", "Total duration of ended pauses"),)

_CLASS_GAUGES = (
    ("running", "turnpike_class_sequences_running", "Running sequences of a class"),
    ("waiting", "turnpike_class_sequences_waiting", "Waiting sequences of a class"),
    ("held_blocks", "turnpike_class_kv_blocks_held", "Blocks held by the sequences of a class"),
    ("reserved_blocks", "turnpike_class_kv_blocks_reserved", "Blocks of a class's reserve that it does not hold"),
    ("cached_blocks", "turnpike_class_kv_blocks_cached", "Free blocks whose content a class used last"),
    (
        "missing_blocks",
        "turnpike_class_kv_blocks_missing",
        "Blocks of a class's reserve that are not available; above 0 is a bug in the engine",
    ),
    ("active_tenants", "turnpike_class_tenants_active", "Tenants that were served in the last 60 s or are waiting"),
    (
        "fairness",
        "turnpike_class_fairness",
        "Jain's index (sum x)^2 / (n sum x^2) over a class's n active tenants: x is a tenant's computed prompt tokens "
        "plus twice its answer tokens in the last 60 s. 1 is even, 1/n is all for one tenant; tenants that ask for "
        "less than their share lower it, too",
    ),
)
_CLASS_GAUGES_SECONDS = (
    ("queue_age_ns", "turnpike_class_queue_age_seconds", "Age of the oldest waiting sequence of a class"),
)
_CLASS_COUNTERS = (
    (
        "recomputed_tokens",
        "turnpike_class_recomputed_tokens",
        "Tokens recomputed after preemptions that the class caused",
    ),
    ("preemptions_caused", "turnpike_class_preemptions_caused", "Preemptions of other classes for this class"),
    ("preemptions_suffered", "turnpike_class_preemptions_suffered", "Preemptions of this class for another class"),
    ("wasted_rows", "turnpike_class_wasted_rows", "Rows of steps whose results were discarded"),
    (
        "itl_limited_steps",
        "turnpike_class_itl_limited_steps",
        "Steps with prefill limited by the class's target for the time between tokens",
    ),
)
_CLASS_SECONDS = (
    ("attributed_ns", "turnpike_class_engine_seconds", "Step time attributed to the class"),
    ("recompute_ns", "turnpike_class_recompute_seconds", "Part of the attributed time spent on recomputation"),
    ("wasted_ns", "turnpike_class_wasted_seconds", "Part of the attributed time spent on discarded rows"),
)

_DRAFT_GAUGES = (
    ("depth", "turnpike_speculation_depth", "Maximum draft depth per request, mean of the latest steps"),
    ("acceptance", "turnpike_speculation_acceptance", "Acceptance rate of the latest drafts"),
)
_DRAFT_COUNTERS = (
    ("proposed_total", "turnpike_draft_tokens", "Draft tokens proposed and verified"),
    ("accepted_total", "turnpike_accepted_draft_tokens", "Draft tokens accepted"),
)


_ADMISSION_GAUGES = (
    ("open", "turnpike_admission_open_holds", "Open holds of limits"),
    (
        "breaker_open",
        "turnpike_limits_breaker_open",
        "1 while the shared store of limits is considered down and this replica uses its local share",
    ),
    ("unmerged", "turnpike_limits_unmerged", "Settled requests that are not yet in the shared store"),
)


class AdmissionCollector(Collector):
    """Admission of requests at their limits."""

    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def describe(self) -> Iterator[Metric]:
        """No names, so registering does not call `collect`."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        counts = dict(self._counts())
        for key, name, meaning in _ADMISSION_GAUGES:
            yield GaugeMetricFamily(name, meaning, counts.pop(key, 0))
        events = CounterMetricFamily("turnpike_admission", "Holds by outcome", labels=["event"])
        for event, count in counts.items():
            events.add_metric([event], count)
        yield events


class EngineCollector(Collector):
    """Reads the engine's counts on each scrape, so that the step loop does no work for metrics."""

    def __init__(self, stats: Callable[[], Mapping[str, ModelStats]]) -> None:
        self._stats = stats

    def describe(self) -> Iterator[Metric]:
        """Names without values: registering must not need a running engine."""
        yield from _families({})

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        yield from _families(self._stats())


def _families(stats: Mapping[str, ModelStats]) -> Iterator[Metric]:
    for field, name, meaning in _ENGINE_GAUGES:
        yield _fill(GaugeMetricFamily(name, meaning, labels=[_MODEL]), field, stats, 1)
    for field, name, meaning in _ENGINE_COUNTERS:
        yield _fill(CounterMetricFamily(name, meaning, labels=[_MODEL]), field, stats, 1)
    for field, name, meaning in _ENGINE_SECONDS:
        yield _fill(CounterMetricFamily(name, meaning, labels=[_MODEL]), field, stats, 1e-9)
    for field, name, meaning in _CLASS_GAUGES:
        yield _by_class(GaugeMetricFamily(name, meaning, labels=[_MODEL, _CLASS]), field, stats, 1)
    for field, name, meaning in _CLASS_GAUGES_SECONDS:
        yield _by_class(GaugeMetricFamily(name, meaning, labels=[_MODEL, _CLASS]), field, stats, 1e-9)
    for field, name, meaning in _CLASS_COUNTERS:
        yield _by_class(CounterMetricFamily(name, meaning, labels=[_MODEL, _CLASS]), field, stats, 1)
    for field, name, meaning in _CLASS_SECONDS:
        yield _by_class(CounterMetricFamily(name, meaning, labels=[_MODEL, _CLASS]), field, stats, 1e-9)
    speculation = {model: counts.speculation for model, counts in stats.items() if counts.speculation is not None}
    yield from _speculation_families(speculation)


def _speculation_families(stats: Mapping[str, SpeculationStats]) -> Iterator[Metric]:
    saved = GaugeMetricFamily(
        "turnpike_speculation_saved_seconds",
        "Predicted time saved by drafts so far, over all tokens; falls while drafts do not pay",
        labels=[_MODEL],
    )
    spent = CounterMetricFamily(
        "turnpike_drafting_seconds", "Time spent on proposing drafts", labels=[_MODEL, _PROPOSER]
    )
    for model, counts in stats.items():
        saved.add_metric([model], counts.saved_ns * 1e-9)
        for proposer, drafting_ns in counts.drafting_ns.items():
            spent.add_metric([model, proposer], drafting_ns * 1e-9)
    yield saved
    yield spent
    labels = [_MODEL, _PROPOSER, _CLASS]
    for field, name, meaning in _DRAFT_GAUGES:
        yield _by_draft(GaugeMetricFamily(name, meaning, labels=labels), field, stats)
    for field, name, meaning in _DRAFT_COUNTERS:
        yield _by_draft(CounterMetricFamily(name, meaning, labels=labels), field, stats)


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily, field: str, stats: Mapping[str, ModelStats], unit: float
) -> Metric:
    for model, counts in stats.items():
        family.add_metric([model], getattr(counts, field) * unit)
    return family


def _by_class(
    family: GaugeMetricFamily | CounterMetricFamily, field: str, stats: Mapping[str, ModelStats], unit: float
) -> Metric:
    for model, counts in stats.items():
        for of_class in counts.classes:
            family.add_metric([model, of_class.name], getattr(of_class, field) * unit)
    return family


def _by_draft(
    family: GaugeMetricFamily | CounterMetricFamily, field: str, stats: Mapping[str, SpeculationStats]
) -> Metric:
    for model, counts in stats.items():
        for draft in counts.drafts:
            family.add_metric([model, draft.proposer, draft.service_class], getattr(draft, field))
    return family
