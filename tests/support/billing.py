"""Usage in memory, and a clock that tests turn."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from gateway.billing.month import Month
from gateway.billing.prices import Price
from gateway.billing.usage import NOTHING, EngineTime, LineKey, UsageSum, event_digest
from gateway.common.timestamps import unix_ms
from gateway.metering.event import UsageEvent, admitted_ms
from tests.support import usage_events


@dataclass
class Clock:
    now: datetime

    def __call__(self) -> datetime:
        return self.now


class RecordedUsage:
    """`UsageTotals` and `EngineTimes` over events that were recorded; an id that comes again replaces the first."""

    def __init__(self) -> None:
        self.events: dict[UUID, UsageEvent] = {}

    def record(self, *events: UsageEvent) -> None:
        self.events.update({event.event_id: event for event in events})

    async def totals(self, tenant_id: str, start: datetime, end: datetime) -> Mapping[LineKey, UsageSum]:
        sums: dict[LineKey, UsageSum] = defaultdict(lambda: NOTHING)
        for event in self.events.values():
            if event.tenant_id == tenant_id and start <= event.occurred_at < end:
                key = LineKey(
                    Month.of(event.occurred_at),
                    event.served_model,
                    event.tier_served,
                    event.price_version,
                    event.adapter_id,
                )
                sums[key] += sum_of(event)
        return dict(sums)

    async def spent_nanodollars(self, tenant_id: str, since: datetime) -> int:
        return sum(
            event.cost_nanodollars
            for event in self.events.values()
            if event.tenant_id == tenant_id and admitted_ms(event) >= unix_ms(since)
        )

    async def engine_times(self, start: datetime, end: datetime) -> tuple[EngineTime, ...]:
        return tuple(
            EngineTime(each.tenant_id, each.tier_served, each.engine_ns, each.recompute_ns, each.cost_nanodollars)
            for each in self.events.values()
            if start <= each.occurred_at < end
        )


def sum_of(event: UsageEvent) -> UsageSum:
    return UsageSum(
        1,
        event.prompt_tokens - event.cached_tokens,
        event.cached_tokens,
        event.completion_tokens,
        event.cost_nanodollars,
        event_digest(event.event_id, event.cost_nanodollars),
        int(event.estimated),
    )


def an_event(tenant_id: str, at: datetime, price: Price, tokens: tuple[int, int, int], **changes: object) -> UsageEvent:
    """Of the price version's model, at its cost. `tokens`: of the prompt, cached ones of them, of the answer."""
    prompt_tokens, cached_tokens, completion_tokens = tokens
    own: dict[str, object] = {
        "tenant_id": tenant_id,
        "served_model": price.version.partition("@")[0],
        "occurred_at": at,
    }
    used = {"prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens, "completion_tokens": completion_tokens}
    paid = {"price_version": price.version, "cost_nanodollars": price.of(*tokens)}
    return usage_events.an_event(**{"tier": "standard"} | own | used | paid | changes)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
