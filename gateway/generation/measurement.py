"""Metrics of one generating request, by OpenTelemetry's GenAI conventions."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gateway.generation.usage import UsageTotal
from gateway.http.errors import ClientGone, as_api_error
from gateway.speech.output_parser import ParsedDelta
from gateway.telemetry.metrics import Metrics

_INTERNAL = "internal_error"


class Measurement:
    """Times one request from the last byte of its body on. `model`: the one that the request is attributed to."""

    def __init__(self, metrics: Metrics, operation: str, model: str, tier: str) -> None:
        self.model = model
        self._metrics = metrics
        self._operation = operation
        self._tier = tier
        self._started = time.perf_counter()
        self._first: dict[int, tuple[float, int]] = {}
        self._latest: dict[int, float] = {}
        self.ttft_ms: int | None = None

    @property
    def _labels(self) -> tuple[str, str, str]:
        return self._operation, self.model, self._tier

    def record_deltas(self, outputs: Sequence[ParsedDelta]) -> None:
        """Record arrival times: time to first token, inter-token latency between deltas, and time per output token from
        a choice's first delta on."""
        now, labels = time.perf_counter(), self._labels
        for output in outputs:
            choice, delta = output.choice, output.delta
            if delta.token_ids:
                if choice in self._latest:
                    self._metrics.inter_token.labels(*labels).observe(now - self._latest[choice])
                self._latest[choice] = now
            if choice not in self._first and delta.token_ids:
                if not self._first:
                    self.ttft_ms = round((now - self._started) * 1e3)
                    self._metrics.time_to_first_token.labels(*labels).observe(now - self._started)
                self._first[choice] = (now, len(delta.token_ids))
            if delta.usage is not None and choice in self._first:
                then, first_tokens = self._first[choice]
                later_tokens = delta.usage.completion_tokens - first_tokens
                if later_tokens > 0:
                    each_s = (now - then) / later_tokens
                    self._metrics.time_per_output_token.labels(*labels).observe(each_s)

    def record_usage(self, usage: UsageTotal) -> None:
        for kind, tokens in (("input", usage.prompt_tokens), ("output", usage.completion_tokens)):
            self._metrics.token_usage.labels(*self._labels, kind).observe(tokens)

    def record_end(self, error_type: str) -> None:
        elapsed_s = time.perf_counter() - self._started
        self._metrics.request_duration.labels(*self._labels, error_type).observe(elapsed_s)

    def record_shed(self, reason: str) -> None:
        self._metrics.sheds.labels(self.model, self._tier, reason).inc()


@contextmanager
def measuring(metrics: Metrics, operation: str, model: str, tier: str) -> Iterator[Measurement]:
    """Measure a block. Its exception, if any, is the outcome of the request."""
    measurement = Measurement(metrics, operation, model, tier)
    try:
        yield measurement
    except BaseException as error:
        measurement.record_end(error_type(error))
        if (reason := shed_reason(error)) is not None:
            measurement.record_shed(reason)
        raise
    measurement.record_end("")


def error_type(error: BaseException) -> str:
    """The code of an error, as a label value."""
    if isinstance(error, ClientGone):
        return "client_gone"
    known = as_api_error(error) if isinstance(error, Exception) else None
    return (known.code if known is not None else None) or _INTERNAL


def shed_reason(error: BaseException) -> str | None:
    """The code of an error that asks the client to retry later; None for any other."""
    known = as_api_error(error) if isinstance(error, Exception) else None
    return known.code if known is not None and known.status in (429, 503) else None
