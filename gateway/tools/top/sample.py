"""What `/metrics` said at one time, and what has happened between two of them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


class NotMetrics(Exception):
    """The text is not Prometheus' format."""


@dataclass(frozen=True, slots=True)
class Sample:
    """`at_s` is of a monotonic clock. Values by their names as exposed, `_total` and `_bucket` included, and labels."""

    at_s: float
    series: Mapping[str, Mapping[Labels, float]]

    @classmethod
    def parse(cls, text: str, at_s: float) -> "Sample":
        """
        Raises:
            NotMetrics: it is something else.
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
        """All series of a name that have these labels, and maybe others."""
        wanted = labels.items()
        return ((each, value) for each, value in self.series.get(name, {}).items() if wanted <= each)

    def total(self, name: str, **labels: str) -> float | None:
        """Their sum; None where there is none."""
        values = [value for _, value in self.of(name, labels)]
        return sum(values) if values else None

    def most(self, name: str, **labels: str) -> float | None:
        return max((value for _, value in self.of(name, labels)), default=None)

    def values_of(self, label: str, *names: str, **labels: str) -> list[str]:
        """What a label is among the series of these names, sorted."""
        found = {dict(each).get(label) for name in names for each, _ in self.of(name, labels)}
        return sorted(value for value in found if value is not None)


@dataclass(frozen=True, slots=True)
class Between:
    """What has been counted between two samples. A counter that is lower than before has begun anew, at 0: the server
    was restarted."""

    before: Sample
    after: Sample

    def grown(self, name: str, **labels: str) -> float | None:
        """By how much counters have grown; None where there are none."""
        earlier = self.before.series.get(name, {})
        grown = None
        for each, value in self.after.of(name, labels):
            was = earlier.get(each, 0.0)
            grown = (grown or 0.0) + (value - was if value >= was else value)
        return grown

    def rate(self, name: str, **labels: str) -> float | None:
        """The same in a second."""
        seconds = self.after.at_s - self.before.at_s
        grown = self.grown(name, **labels)
        return None if grown is None or seconds <= 0 else grown / seconds

    def buckets(self, name: str, **labels: str) -> list[tuple[float, float]]:
        """(upper edge, observations up to it) of a histogram, over all series with these labels, by their edges."""
        edges = {float(edge): edge for edge in self.after.values_of("le", f"{name}_bucket", **labels)}
        grown = {edge: self.grown(f"{name}_bucket", **labels, le=text) for edge, text in sorted(edges.items())}
        return [(edge, count) for edge, count in grown.items() if count is not None]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A quantile out of a histogram. `beyond`: it is above the last edge, which is `value`."""

    value: float
    beyond: bool = False


def quantile(buckets: list[tuple[float, float]], share: float) -> Estimate | None:
    """As Prometheus does it: by a straight line within the bucket that has it. None without observations."""
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
