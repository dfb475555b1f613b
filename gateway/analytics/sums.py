"""Vocabulary of the rollups: time ranges, dimensions, grains and summed columns."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Instants from `start_ms` to before `end_ms`, Unix milliseconds."""

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.start_ms > self.end_ms:
            raise ValueError(f"the window ends ({self.end_ms}) before it starts ({self.start_ms})")

    @property
    def parameters(self) -> dict[str, int]:
        """Parameters of `DURING`."""
        return {"start_ms": self.start_ms, "end_ms": self.end_ms}

    def widened_to(self, unit_ms: int) -> "TimeRange":
        """The whole units, counted from the epoch, that the range overlaps."""
        return TimeRange(self.start_ms // unit_ms * unit_ms, -(-self.end_ms // unit_ms) * unit_ms)


def instant(parameter: str) -> str:
    """SQL of an instant whose milliseconds are a bound parameter. Drivers bind datetimes to the second only."""
    return f"fromUnixTimestamp64Milli({{{parameter}:Int64}}, 'UTC')"


DURING = f"occurred_at >= {instant('start_ms')} AND occurred_at < {instant('end_ms')}"
"""Condition on events, with `TimeRange.parameters`."""


class Dimension(StrEnum):
    """Columns of the events and of the rollups that group usage."""

    TENANT = "tenant_id"
    KEY = "key_id"
    MODEL = "served_model"
    TIER = "tier"


class Grain(StrEnum):
    """Length of a rollup's buckets. Days are in UTC."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"

    @property
    def table(self) -> str:
        """Name of the rollup's table."""
        return f"usage_by_{self.value}"

    @property
    def start_of(self) -> str:
        """SQL function from an instant to the start of its bucket."""
        return f"toStartOf{self.value.title()}"

    @property
    def length_ms(self) -> int:
        """Length of a bucket in milliseconds."""
        return {Grain.MINUTE: 60_000, Grain.HOUR: 3_600_000, Grain.DAY: 86_400_000}[self]


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over a group of events. `ttft_ms`: sum over the `ttft_events` that had a first token."""

    events: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    undelivered_tokens: int
    draft_tokens: int
    accepted_draft_tokens: int
    ttft_ms: int
    ttft_events: int
    total_latency_ms: int
    queue_ms: int
    engine_ns: int
    recompute_ns: int
    preemptions: int
    cost_nanodollars: int

    @classmethod
    def of(cls, amounts: Sequence[Any]) -> Self:
        """The sums in a row, in the order of the fields."""
        return cls(*map(int, amounts))


SUM_COLUMNS = tuple(field.name for field in fields(Sums))

_OVER_EVENTS = {
    "events": "toInt128(count())",
    "ttft_ms": "sum(toInt128(ifNull(event.ttft_ms, 0)))",
    "ttft_events": "toInt128(count(event.ttft_ms))",
    "recompute_ns": "sum(toInt128(arraySum(mapValues(event.recompute_ns))))",
}
SUMS_OF_EVENTS = ", ".join(
    f"{_OVER_EVENTS.get(name, f'sum(toInt128(event.{name}))')} AS {name}" for name in SUM_COLUMNS
)
"""Select list over `usage_events AS event`. The views in migrations/clickhouse have the same."""
SUMS_OF_ROLLUP = ", ".join(f"sum(rollup.{name}) AS {name}" for name in SUM_COLUMNS)
"""Select list over `usage_by_... AS rollup`."""

DISTINCT_EVENTS = "usage_events AS event FINAL"
"""Each event once, whether or not its copies have been merged."""
PARTITIONWISE = "SETTINGS do_not_merge_across_partitions_select_final = 1"
"""Copies of an event share its partition, so FINAL need not merge across partitions."""
