"""Traffic from the usage events in ClickHouse.

Events have no text: tokens that were read from the prefix cache count as the prefix of one group for each
tenant. That is assumed, as events do not say which prompts share.
"""

from engine.planning.trace import TraceRow, TraceTraffic
from gateway.analytics import Analytics
from gateway.analytics.sums import DISTINCT_EVENTS, DURING, PARTITIONWISE, TimeRange
from gateway.errors import OperatorError

MAX_EVENTS = 1_000_000


async def logged_traffic(analytics: Analytics, window: TimeRange, model: str | None = None) -> TraceTraffic:
    """The requests of a window that were answered. `model`: only those that it served; None: all.

    Raises:
        OperatorError: there are none, or more than `MAX_EVENTS`.
        AnalyticsAway, AnalyticsRefused: as `Analytics` has them.
    """
    condition = DURING
    parameters: dict[str, int | str] = {**window.parameters}
    if model is not None:
        condition += " AND served_model = {model:String}"
        parameters["model"] = model
    rows = await analytics.query(
        f"""
        SELECT toUnixTimestamp64Milli(occurred_at) - total_latency_ms AS arrived_ms, tenant_id, tier_served,
            prompt_tokens, completion_tokens + undelivered_tokens, cached_tokens
        FROM {DISTINCT_EVENTS} WHERE {condition} AND prompt_tokens > 0 AND completion_tokens + undelivered_tokens > 0
        ORDER BY arrived_ms, event_id LIMIT {MAX_EVENTS + 1} {PARTITIONWISE}
        """,
        parameters,
    )
    if not rows:
        raise OperatorError("no usage was logged in this time: see --since, --until and turnpike usage show")
    if len(rows) > MAX_EVENTS:
        raise OperatorError(f"more than {MAX_EVENTS:,} requests were logged: shorten the time by --since and --until")
    start_ms = rows[0][0]
    return TraceTraffic(
        tuple(
            TraceRow(
                (arrived_ms - start_ms) / 1000,
                tenant,
                tier,
                prompt_tokens,
                output_tokens,
                "cached" if cached_tokens else "",
                min(cached_tokens, prompt_tokens),
            )
            for arrived_ms, tenant, tier, prompt_tokens, output_tokens, cached_tokens in rows
        )
    )
