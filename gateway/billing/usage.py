"""Interface of usage for billing: sums over usage events, each counted once however often it is stored."""

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
    """Key of a sum, and of an invoice line. `usage_month`: month of the events' `occurred_at`. `adapter_id`: of the
    adapter of `served_model` that answered; empty: none."""

    usage_month: Month
    served_model: str
    tier_served: str
    price_version: str
    adapter_id: str = ""


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Sums over a set of events. `input_tokens`: prompt tokens without `cached_tokens`. `estimated_events`: those whose
    tokens are an estimate.

    `digest`: sum of `event_digest` over the events, modulo `DIGEST_MODULUS`. It does not depend on the order, and the
    digest of a disjoint union is the sum of the digests.
    """

    events: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_nanodollars: int = 0
    digest: int = 0
    estimated_events: int = 0

    def __add__(self, other: "UsageSum") -> "UsageSum":
        return UsageSum(
            self.events + other.events,
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.cost_nanodollars + other.cost_nanodollars,
            (self.digest + other.digest) % DIGEST_MODULUS,
            self.estimated_events + other.estimated_events,
        )

    def __sub__(self, other: "UsageSum") -> "UsageSum":
        """The events of this set without those of `other`, its subset. If it is not a subset, a count may be
        negative."""
        return UsageSum(
            self.events - other.events,
            self.input_tokens - other.input_tokens,
            self.cached_tokens - other.cached_tokens,
            self.output_tokens - other.output_tokens,
            self.cost_nanodollars - other.cost_nanodollars,
            (self.digest - other.digest) % DIGEST_MODULUS,
            self.estimated_events - other.estimated_events,
        )

    @property
    def counts(self) -> tuple[int, ...]:
        """All sums except the digest."""
        return (self.events, self.input_tokens, self.cached_tokens, self.output_tokens, self.cost_nanodollars)


NOTHING = UsageSum()


class UsageTotals(Protocol):
    """Source of usage. Reads de-duplicate by event id; both raise `AnalyticsAway`."""

    async def totals(self, tenant_id: str, start: datetime, end: datetime) -> Mapping[LineKey, UsageSum]:
        """A tenant's usage with `occurred_at` in [start, end), both the starts of months, UTC."""
        ...

    async def spent_nanodollars(self, tenant_id: str, since: datetime) -> int:
        """Cost of a tenant's requests that were admitted at or after `since`, to the millisecond."""
        ...


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Engine time and revenue of a tenant's requests in one class. `recompute_ns`: time of their recomputation, by the
    class that preempted them; it is not part of `engine_ns`."""

    tenant_id: str
    tier_served: str
    engine_ns: int
    recompute_ns: Mapping[str, int]
    revenue_nanodollars: int


class EngineTimes(Protocol):
    """Source of engine time, de-duplicated like `UsageTotals`. Raises `AnalyticsAway`."""

    async def engine_times(self, start: datetime, end: datetime) -> tuple[EngineTime, ...]:
        """Engine time of all tenants, for events with `occurred_at` in [start, end)."""
        ...


def event_digest(event_id: UUID, cost_nanodollars: int) -> int:
    """The first 16 bytes of SHA-256 over `<event id>:<cost>`, big-endian. The id is 36 lower-case characters."""
    return int.from_bytes(hashlib.sha256(f"{event_id}:{cost_nanodollars}".encode()).digest()[:16], "big")
