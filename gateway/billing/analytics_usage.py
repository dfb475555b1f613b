"""Usage for billing from the analytics store: sums over the distinct events, never over the rollups."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway.analytics.store import Analytics
from gateway.analytics.sums import DISTINCT_EVENTS, DURING, PARTITIONWISE, TimeRange, instant
from gateway.billing.month import Month
from gateway.billing.usage import EngineTime, LineKey, UsageSum
from gateway.common.timestamps import unix_ms

_EVENT_DIGEST = """
reinterpretAsUInt128(reverse(substring(
    SHA256(concat(toString(event.event_id), ':', toString(event.cost_nanodollars))), 1, 16
)))
"""
"""`usage.event_digest` in ClickHouse, which reads integers in little-endian order."""


class AnalyticsUsage:
    """Implements `UsageTotals` and `EngineTimes`. Every method raises `AnalyticsAway` if the store does not answer."""

    def __init__(self, analytics: Analytics) -> None:
        self._analytics = analytics

    async def totals(self, tenant_id: str, start: datetime, end: datetime) -> Mapping[LineKey, UsageSum]:
        """As in `UsageTotals`."""
        rows = await self._analytics.query(
            f"""
            SELECT toYYYYMM(event.occurred_at) AS month, served_model, tier_served, price_version, adapter_id,
                count(),
                sum(toInt128(event.prompt_tokens) - toInt128(event.cached_tokens)),
                sum(toInt128(event.cached_tokens)),
                sum(toInt128(event.completion_tokens)),
                sum(toInt128(event.cost_nanodollars)),
                sumWithOverflow({_EVENT_DIGEST}),
                countIf(event.estimated)
            FROM {DISTINCT_EVENTS} WHERE {DURING} AND tenant_id = {{tenant_id:String}}
            GROUP BY month, served_model, tier_served, price_version, adapter_id
            {PARTITIONWISE}
            """,
            {**_window(start, end), "tenant_id": tenant_id},
        )
        return {
            LineKey(Month(month // 100, month % 100), model, tier, version, adapter): UsageSum(*map(int, amounts))
            for month, model, tier, version, adapter, *amounts in rows
        }

    async def spent_nanodollars(self, tenant_id: str, since: datetime) -> int:
        """As in `UsageTotals`."""
        [(spent,)] = await self._analytics.query(
            f"""
            SELECT sum(toInt128(event.cost_nanodollars))
            FROM {DISTINCT_EVENTS}
            WHERE tenant_id = {{tenant_id:String}} AND occurred_at >= {instant("since_ms")}
                AND toUnixTimestamp64Milli(occurred_at) - toInt64(total_latency_ms) >= {{since_ms:Int64}}
            {PARTITIONWISE}
            """,
            {"tenant_id": tenant_id, "since_ms": unix_ms(since)},
        )
        return int(spent)

    async def engine_times(self, start: datetime, end: datetime) -> tuple[EngineTime, ...]:
        """As in `EngineTimes`."""
        rows = await self._analytics.query(
            f"""
            SELECT tenant_id, tier_served, sum(toInt128(event.engine_ns)), sumMap(event.recompute_ns),
                sum(toInt128(event.cost_nanodollars))
            FROM {DISTINCT_EVENTS} WHERE {DURING}
            GROUP BY tenant_id, tier_served ORDER BY tenant_id, tier_served
            {PARTITIONWISE}
            """,
            _window(start, end),
        )
        return tuple(
            EngineTime(tenant_id, tier, int(engine_ns), dict(recompute_ns), int(revenue))
            for tenant_id, tier, engine_ns, recompute_ns, revenue in rows
        )


def _window(start: datetime, end: datetime) -> dict[str, Any]:
    return dict(TimeRange(unix_ms(start), unix_ms(end)).parameters)
