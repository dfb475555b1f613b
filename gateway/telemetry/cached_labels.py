"""Prometheus metrics whose labelled children are found by one look-up.

`labels` of the library checks and converts the values each time, which takes several times as long as an observation.
Values of labels here are closed sets, so children are never removed.
"""

from typing import Any, Self

import prometheus_client
from prometheus_client.metrics import MetricWrapperBase


class _CachedLabels(MetricWrapperBase):
    """To be mixed in before a metric's class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._by_values: dict[tuple[Any, ...], Self] = {}
        super().__init__(*args, **kwargs)

    def labels(self, *labelvalues: Any, **labelkwargs: Any) -> Self:
        """The child with these values, in the order of the metric's labels or by their names."""
        child = None if labelkwargs else self._by_values.get(labelvalues)
        if child is None:
            child = super().labels(*labelvalues, **labelkwargs)
            if not labelkwargs:
                self._by_values[labelvalues] = child
        return child


class Counter(_CachedLabels, prometheus_client.Counter):
    """As `prometheus_client.Counter`."""


class Histogram(_CachedLabels, prometheus_client.Histogram):
    """As `prometheus_client.Histogram`."""
