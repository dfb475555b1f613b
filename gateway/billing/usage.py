"""What billing needs to know of usage: sums over usage events, each event counted once however often it was stored."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from gateway.billing.month import Month

DIGEST_MODULUS = 2**128


@dataclass(frozen=True, slots=True, order=True)
class LineKey:
    """What is summed apart: each becomes a line of an invoice. `usage_month` is that of the events' `occurred_at`."""

    usage_month: Month
    served_model: str
    tier_served: str
    price_version: str


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Sums over a set of events. `input_tokens` are those of prompts without the `cached_tokens` of them.

    `digest` is the sum of `event_digest` over the events, modulo `DIGEST_MODULUS`: it depends on no order, and that of
    two disjoint sets together is the sum of theirs.
    """

    events: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_nanodollars: int = 0
    digest: int = 0

    def __add__(self, other: "UsageSum") -> "UsageSum":
        return UsageSum(
            self.events + other.events,
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.cost_nanodollars + other.cost_nanodollars,
            (self.digest + other.digest) % DIGEST_MODULUS,
        )

    def __sub__(self, other: "UsageSum") -> "UsageSum":
        """What is in this set and not in the other, its subset. Where it is none, a count may be negative."""
        return UsageSum(
            self.events - other.events,
            self.input_tokens - other.input_tokens,
            self.cached_tokens - other.cached_tokens,
            self.output_tokens - other.output_tokens,
            self.cost_nanodollars - other.cost_nanodollars,
            (self.digest - other.digest) % DIGEST_MODULUS,
        )

    @property
    def counts(self) -> tuple[int, ...]:
        return (self.events, self.input_tokens, self.cached_tokens, self.output_tokens, self.cost_nanodollars)


NOTHING = UsageSum()


class UsageTotals(Protocol):
    """Where usage is read from. Reads de-duplicate by event id themselves; both raise `AnalyticsAway`."""

    async def totals(self, tenant_id: str, start: datetime, end: datetime) -> Mapping[LineKey, UsageSum]:
        """A tenant's usage with `occurred_at` in [start, end), both the starts of months, UTC."""
        ...

    async def spent_nanodollars(self, tenant_id: str, since: datetime) -> int:
        """What a tenant's requests cost so far that were admitted at or after `since`, to the millisecond."""
        ...


@dataclass(frozen=True, slots=True)
class EngineTime:
    """What a tenant's requests in one class took of engines, and brought in. `recompute_ns` is what they had to repeat,
    by the class that each was preempted for; it is no part of `engine_ns`."""

    tenant_id: str
    tier_served: str
    engine_ns: int
    recompute_ns: Mapping[str, int]
    revenue_nanodollars: int


class EngineTimes(Protocol):
    """Where engine time is read from, de-duplicated as `UsageTotals` is. Raises `AnalyticsAway`."""

    async def engine_times(self, start: datetime, end: datetime) -> tuple[EngineTime, ...]:
        """Of all tenants, for events with `occurred_at` in [start, end)."""
        ...


def event_digest(event_id: UUID, cost_nanodollars: int) -> int:
    """The first 16 bytes of SHA-256 over `<event id>:<cost>`, big-endian; the id as 36 lower-case characters."""
    return int.from_bytes(hashlib.sha256(f"{event_id}:{cost_nanodollars}".encode()).digest()[:16], "big")
