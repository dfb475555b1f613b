"""The gateway's Prometheus metrics.

Names and buckets are OpenTelemetry's for generative AI where it has them (semantic conventions, gen-ai-metrics), in
Prometheus' spelling; others are `turnpike_*`. Label values are closed sets: a model is a served one, never a client's
string.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.telemetry.cached_labels import Counter, Histogram
from gateway.telemetry.engine_collector import CLASS_LABEL, MODEL_LABEL, EngineCollector
from gateway.telemetry.model_stats import ModelStats
from gateway.telemetry.outcomes import RequestOutcomes

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_REQUEST_BUCKETS_S = tuple(0.01 * 2**n for n in range(14))
# fmt: off
_FIRST_TOKEN_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0,
)
# fmt: on
_OUTPUT_TOKEN_BUCKETS_S = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKEN_BUCKETS = tuple(4**n for n in range(14))


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
        served = ["gen_ai_operation_name", MODEL_LABEL, "turnpike_tier"]
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
            [MODEL_LABEL, CLASS_LABEL, "reason"],
            registry=self.registry,
        )

        self.routed = Counter(
            "turnpike_routed_requests",
            "Requests by the model that answered and the reason of its selection",
            [MODEL_LABEL, "reason"],
            registry=self.registry,
        )
        self.all_large_dollars = Counter(
            "turnpike_route_all_large_dollars",
            "Cost of completed answers if the large model had generated them all, by large model",
            [MODEL_LABEL],
            registry=self.registry,
        )
        self.saved_dollars = Counter(
            "turnpike_route_saved_dollars",
            "Part of that cost saved by small models, by the large model that they replaced",
            [MODEL_LABEL],
            registry=self.registry,
        )

    def render(self) -> bytes:
        """The response body of `/metrics`, of `CONTENT_TYPE`."""
        return generate_latest(self.registry)


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
