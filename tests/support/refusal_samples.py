"""Refusals for the tests of the store."""

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from gateway.analytics import Analytics
from gateway.analytics.refusals import REFUSAL_COLUMNS, REFUSALS_TABLE, StoredRefusal
from gateway.analytics.sums import TimeRange
from gateway.common.timestamps import utc_from_ms
from gateway.refusals.refusal import Kind, Refusal
from gateway.telemetry.outcomes import RequestOutcome
from tests.support.usage_samples import DAY_MS

TODAY_MS = time.time_ns() // 1_000_000 // DAY_MS * DAY_MS - DAY_MS
"""Start of yesterday: rows of a fixed date would expire."""
TODAY = TimeRange(TODAY_MS, TODAY_MS + DAY_MS)


def refusal(number: int, at_ms: int = TODAY_MS, **fields: Any) -> StoredRefusal:
    """A row of one refused request; its id is `number`."""
    standard = {
        "refusal_id": UUID(int=number),
        "source": "a",
        "occurred_at": utc_from_ms(at_ms),
        "tenant_id": "acme",
        "key_id": "key_1",
        "tier": "standard",
        "model": "large",
        "endpoint": "/v1/chat/completions",
        "outcome": "turned_away",
        "status": 429,
        "code": "rate_limit_exceeded",
        "limit_name": "tenant.requests_per_minute",
        "requests": 1,
        "request_id": f"req_{number}",
    }
    return StoredRefusal(**(standard | fields))


def a_refusal(**fields: Any) -> Refusal:
    """One refused request, as a gateway records it."""
    standard = {
        "at_ms": TODAY_MS,
        "request_id": "req_1",
        "tenant_name": "acme",
        "tenant_id": "t1",
        "key_id": "key_1",
        "tier": "standard",
        "model": "large",
        "endpoint": "/v1/chat/completions",
        "outcome": RequestOutcome.TURNED_AWAY,
        "status": 429,
        "code": "rate_limit_exceeded",
        "limit_name": "tenant.requests_per_minute",
    }
    assert fields.keys() <= standard.keys()
    given = standard | fields
    kind = Kind(**{name: given[name] for name in Kind._fields})
    return Refusal(given["at_ms"], given["request_id"], given["tenant_name"], kind)


async def store_refusals(analytics: Analytics, refusals: Sequence[StoredRefusal]) -> None:
    rows = [[getattr(each, name) for name in REFUSAL_COLUMNS] for each in refusals]
    await analytics.insert(REFUSALS_TABLE, REFUSAL_COLUMNS, rows)
