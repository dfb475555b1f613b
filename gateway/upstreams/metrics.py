"""Prometheus metrics of upstreams. Running and waiting requests are in the engine's metrics, as of any model."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.telemetry.engine_collector import MODEL_LABEL
from gateway.upstreams.breaker import BreakerState
from gateway.upstreams.model import UpstreamModel

_GAUGES: tuple[tuple[str, str, Callable[[UpstreamModel], float]], ...] = (
    ("turnpike_upstream_up", "1 while requests are sent to the model's server", lambda model: model.health == "up"),
    (
        "turnpike_upstream_breaker_open",
        "1 while the circuit breaker is open, 0.5 while it is half-open",
        lambda model: {BreakerState.OPEN: 1.0, BreakerState.HALF_OPEN: 0.5}.get(model.breaker.state, 0.0),
    ),
    (
        "turnpike_upstream_time_to_first_token_seconds",
        "Moving average of the time to the first token of the model's server",
        lambda model: model.load.first_token_s or 0.0,
    ),
)
_COUNTERS: tuple[tuple[str, str, Callable[[UpstreamModel], float]], ...] = (
    (
        "turnpike_upstream_retries",
        "Requests sent to the model's server once more",
        lambda model: model.connection.budget.retries_total,
    ),
    (
        "turnpike_upstream_breaker_opened",
        "Times that the circuit breaker has opened",
        lambda model: model.breaker.opened_total,
    ),
    (
        "turnpike_upstream_estimated_answers",
        "Answers billed by an estimate, as the model's server reports no usage",
        lambda model: model.estimated_total,
    ),
)


class UpstreamCollector(Collector):
    """Collects the metrics on each scrape."""

    def __init__(self, upstreams: Sequence[UpstreamModel]) -> None:
        self._upstreams = upstreams

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        for name, meaning, value in _GAUGES:
            yield self._fill(GaugeMetricFamily(name, meaning, labels=[MODEL_LABEL]), value)
        for name, meaning, value in _COUNTERS:
            yield self._fill(CounterMetricFamily(name, meaning, labels=[MODEL_LABEL]), value)

    def _fill(self, family: GaugeMetricFamily | CounterMetricFamily, value: Callable[[UpstreamModel], float]) -> Metric:
        for model in self._upstreams:
            family.add_metric([model.name], float(value(model)))
        return family
