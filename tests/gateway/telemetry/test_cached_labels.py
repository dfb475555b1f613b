"""Metrics with cached children count as those of the library."""

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.telemetry.cached_labels import Counter, Histogram


def exposition(counter: type, histogram: type) -> list[str]:
    registry = CollectorRegistry()
    counts = counter("requests", "Requests", ["path", "status"], registry=registry)
    waits = histogram("wait_seconds", "Waits", ["path"], buckets=(1.0, 2.0), registry=registry)
    plain = counter("all", "All", registry=registry)
    for path, status in (("a", "200"), ("b", "500"), ("a", "200")):
        counts.labels(path, status).inc()
        waits.labels(path).observe(1.5)
        plain.inc()
    counts.labels(status="200", path="a").inc()
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_they_count_alike() -> None:
    assert exposition(Counter, Histogram) == exposition(prometheus_client.Counter, prometheus_client.Histogram)


def test_a_child_is_made_once() -> None:
    counter = Counter("requests", "Requests", ["path"], registry=None)
    assert counter.labels("a") is counter.labels("a")
    assert counter.labels(path="a") is counter.labels("a")
    assert counter.labels("a") is not counter.labels("b")


def test_a_wrong_number_of_labels_is_refused() -> None:
    counter = Counter("requests", "Requests", ["path"], registry=None)
    for _ in range(2):
        with pytest.raises(ValueError, match="label"):
            counter.labels("a", "b")
