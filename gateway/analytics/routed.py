"""Routing decisions over time. They are read from the events, as the rollups do not distinguish reasons."""

from dataclasses import dataclass

from gateway.analytics.store import Analytics
from gateway.analytics.sums import DISTINCT_EVENTS, DURING, PARTITIONWISE, Grain, TimeRange


@dataclass(frozen=True, slots=True)
class Routed:
    """Requests with the same routing decision, in the bucket from `bucket_ms` on (Unix milliseconds), with their
    sums."""

    bucket_ms: int
    requested_model: str
    routed_model: str
    served_model: str
    tier_served: str
    route_reason: str
    events: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nanodollars: int


async def routed(
    analytics: Analytics, grain: Grain, window: TimeRange, *, limit: int, tenant_id: str | None = None
) -> list[Routed]:
    """Routing decisions in a window, by bucket: at most `limit` rows, ordered by time."""
    condition = DURING if tenant_id is None else f"{DURING} AND tenant_id = {{tenant_id:String}}"
    rows = await analytics.query(
        f"""
        SELECT
            toUnixTimestamp({grain.start_of}(occurred_at)) * 1000 AS bucket_ms,
            requested_model, routed_model, served_model, tier_served, route_reason,
            count(), sum(toInt128(prompt_tokens)), sum(toInt128(cached_tokens)), sum(toInt128(completion_tokens)),
            sum(toInt128(cost_nanodollars))
        FROM {DISTINCT_EVENTS} WHERE {condition}
        GROUP BY bucket_ms, requested_model, routed_model, served_model, tier_served, route_reason
        ORDER BY bucket_ms, requested_model, routed_model, served_model, tier_served, route_reason
        LIMIT {{limit:UInt32}}
        {PARTITIONWISE}
        """,
        {**window.parameters, "limit": limit} | ({} if tenant_id is None else {"tenant_id": tenant_id}),
    )
    return [Routed(int(row[0]), *row[1:6], *map(int, row[6:])) for row in rows]
