"""One exposition of several processes."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.merged_metrics import gauge, merge, process_label


def exposition(values: dict[str, float]) -> bytes:
    """A counter with labels of any text, a gauge without labels, a histogram."""
    registry = CollectorRegistry()
    counter = Counter("requests", 'Requests with "quotes" \\ and\nlines', ["path"], registry=registry)
    for path, value in values.items():
        counter.labels(path).inc(value)
    Gauge("ready", "Readiness", registry=registry).set(len(values))
    Histogram("wait_seconds", "Waits", ["path"], buckets=(1.0, 2.0), registry=registry).labels("a").observe(1.5)
    return generate_latest(registry)


Series = tuple[str, tuple[tuple[str, str], ...]]


def series_of(text: bytes) -> dict[Series, float]:
    """The samples as Prometheus' parser reads them; each is there once."""
    found: dict[Series, float] = {}
    families = list(text_string_to_metric_families(text.decode()))
    assert len({family.name for family in families}) == len(families), "a family has two heads"
    for family in families:
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


values = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8), st.floats(0, 1e6), max_size=4
)


@given(st.lists(values, min_size=1, max_size=3))
def test_each_process_has_its_samples(processes: list[dict[str, float]]) -> None:
    each = [exposition(value) for value in processes]
    expected = {
        (name, tuple(sorted((*labels, ("process", str(index)))))): value
        for index, text in enumerate(each)
        for (name, labels), value in series_of(text).items()
        if not name.endswith("_created")
    }
    merged = series_of(merge([(process_label(index), text) for index, text in enumerate(each)]))
    assert {key: value for key, value in merged.items() if not key[0].endswith("_created")} == expected


def test_families_of_all_and_of_each_share_a_head() -> None:
    merged = merge([(process_label(0), exposition({"a": 1})), ("", exposition({"a": 2}))])
    series = series_of(merged)
    assert series["requests_total", (("path", "a"), ("process", "0"))] == 1
    assert series["requests_total", (("path", "a"),)] == 2


def test_a_gauge() -> None:
    merged = merge([("", gauge("up", "Whether it answers", {process_label(0): 1.0, process_label(1): 0.0}))])
    assert series_of(merged) == {("up", (("process", "0"),)): 1.0, ("up", (("process", "1"),)): 0.0}
