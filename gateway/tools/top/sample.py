"""A sample of `/metrics`, and the differences between two samples."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


class NotMetrics(Exception):
    """The text is not in Prometheus' format."""


@dataclass(frozen=True, slots=True)
class Sample:
    """`at_s`: monotonic seconds. `series`: values by exposed name (with `_total`, `_bucket`) and labels."""

    at_s: float
    series: Mapping[str, Mapping[Labels, float]]

    @classmethod
    def parse(cls, text: str, at_s: float) -> "Sample":
        """
        Raises:
            NotMetrics: another format.
        """
        series: dict[str, dict[Labels, float]] = {}
        try:
            for family in text_string_to_metric_families(text):
                for each in family.samples:
                    series.setdefault(each.name, {})[frozenset(each.labels.items())] = each.value
        except ValueError as error:
            raise NotMetrics from error
        return cls(at_s, series)

    def of(self, name: str, labels: Mapping[str, str]) -> Iterator[tuple[Labels, float]]:
        """All series of a name that include these labels."""
        wanted = labels.items()
        return ((each, value) for each, value in self.series.get(name, {}).items() if wanted <= each)

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of these series; None without any."""
        values = [value for _, value in self.of(name, labels)]
        return sum(values) if values else None

    def most(self, name: str, **labels: str) -> float | None:
        return max((value for _, value in self.of(name, labels)), default=None)

    def values_of(self, label: str, *names: str, **labels: str) -> list[str]:
        """The sorted values of a label in the series of these names."""
        found = {dict(each).get(label) for name in names for each, _ in self.of(name, labels)}
        return sorted(value for value in found if value is not None)


@dataclass(frozen=True, slots=True)
class Between:
    """The increase of counters between two samples. A counter that decreased was reset to 0 by a restart."""

    before: Sample
    after: Sample

    def grown(self, name: str, **labels: str) -> float | None:
        """The increase of counters; None without any."""
        earlier = self.before.series.get(name, {})
        grown = None
        for each, value in self.after.of(name, labels):
            was = earlier.get(each, 0.0)
            grown = (grown or 0.0) + (value - was if value >= was else value)
        return grown

    def rate(self, name: str, **labels: str) -> float | None:
        """The increase per second."""
        seconds = self.after.at_s - self.before.at_s
        grown = self.grown(name, **labels)
        return None if grown is None or seconds <= 0 else grown / seconds

    def buckets(self, name: str, **labels: str) -> list[tuple[float, float]]:
        """(upper edge, cumulative observations) of a histogram, summed over all series with these labels, by edge."""
        edges = {float(edge): edge for edge in self.after.values_of("le", f"{name}_bucket", **labels)}
        grown = {edge: self.grown(f"{name}_bucket", **labels, le=text) for edge, text in sorted(edges.items())}
        return [(edge, count) for edge, count in grown.items() if count is not None]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A quantile of a histogram. `beyond`: it is above the last edge, which is `value`."""

    value: float
    beyond: bool = False


def quantile(buckets: list[tuple[float, float]], share: float) -> Estimate | None:
    """Prometheus' `histogram_quantile`: linear interpolation within a bucket. None without observations."""
    if not buckets or buckets[-1][1] <= 0:
        return None
    rank = share * buckets[-1][1]
    edge_before, count_before = 0.0, 0.0
    for edge, count in buckets:
        if count >= rank and count > count_before:
            if math.isinf(edge):
                return Estimate(edge_before, beyond=True)
            return Estimate(edge_before + (edge - edge_before) * (rank - count_before) / (count - count_before))
        edge_before, count_before = edge, max(count, count_before)
    return Estimate(edge_before, beyond=True)
