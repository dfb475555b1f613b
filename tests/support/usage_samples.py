"""Usage events for the tests of the store."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from gateway.analytics import Analytics
from gateway.analytics.sums import TimeRange
from gateway.analytics.usage import EVENT_COLUMNS

MARCH_MS = 1_772_323_200_000
"""2026-03-01 00:00:00 UTC."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MARCH = TimeRange(MARCH_MS, MARCH_MS + 31 * DAY_MS)

Event = dict[str, Any]


def event(sequence: int, at_ms: int = MARCH_MS, **fields: Any) -> Event:
    """An event of source `a`; its id follows from the source and `sequence` unless `fields` says otherwise."""
    source = fields.get("source", "a")
    standard = {
        "event_id": UUID(int=(ord(source) << 64) + sequence),
        "source": source,
        "sequence": sequence,
        "schema_version": 6,
        "request_id": f"req_{sequence}",
        "http_request_id": f"http_{sequence}",
        "endpoint": "/v1/chat/completions",
        "streamed": True,
        "http_status": 200,
        "tenant_id": "acme",
        "key_id": "key_1",
        "tier": "standard",
        "tier_served": "standard",
        "requested_model": "auto",
        "routed_model": "small",
        "served_model": "small",
        "model_version": "v1",
        "route_reason": "complexity_small",
        "adapter_id": "",
        "prompt_tokens": 100,
        "cached_tokens": 64,
        "completion_tokens": 10,
        "estimated": False,
        "undelivered_tokens": 1,
        "draft_tokens": 8,
        "accepted_draft_tokens": 5,
        "ttft_ms": 40,
        "total_latency_ms": 400,
        "queue_ms": 3,
        "paused_ms": 6,
        "engine_ns": 5_000_000,
        "recompute_ns": {"premium": 7, "batch": 2},
        "preemptions": 1,
        "finish_reason": "stop",
        "price_version": "p1",
        "cost_nanodollars": 1_000,
        "occurred_at": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms),
    }
    assert fields.keys() <= standard.keys()
    return standard | fields


def rows_of(events: Iterable[Event]) -> list[list[Any]]:
    return [[each[name] for name in EVENT_COLUMNS] for each in events]


async def store(analytics: Analytics, events: Sequence[Event], token: str | None = None) -> None:
    await analytics.insert("usage_events", EVENT_COLUMNS, rows_of(events), token)
