"""Bounds by class, and which of them are missed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from engine.planning.outcome import Outcome


class Target(NamedTuple):
    """Bounds of one class; None: there is none. `refused_share`: of its requests."""

    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    refused_share: float | None = 0.01


class Breach(NamedTuple):
    """A bound that is missed. `field`: its name in `Target`."""

    service_class: str
    field: str
    bound: float
    value: float

    def __str__(self) -> str:
        unit = "" if self.field == "refused_share" else " ms"
        return f"{self.field} of {self.service_class} is {self.value:.4g}{unit}, above {self.bound:.4g}{unit}"


def breaches(outcome: "Outcome", targets: Mapping[str, Target]) -> list[Breach]:
    """The bounds that an outcome misses, the one that is exceeded by the largest factor first."""
    found = []
    for each in outcome.classes:
        target = targets.get(each.name, Target())
        for field in Target._fields:
            bound, value = getattr(target, field), getattr(each, field)
            if bound is not None and value is not None and value > bound:
                found.append(Breach(each.name, field, bound, value))
    return sorted(found, key=lambda breach: -breach.value / max(breach.bound, 1e-9))
