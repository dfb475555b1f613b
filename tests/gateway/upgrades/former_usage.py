"""Usage events as the programs of each schema version have written them."""

from collections.abc import Mapping
from typing import Any

from tests.support.usage_samples import MARCH_MS

SOURCE = "44444444-4444-4444-8444-444444444444"
VERSIONS = (1, 2, 3, 4, 5)

_AFTER: Mapping[int, Mapping[str, Any]] = {
    1: {},
    2: {"routed_model": "large", "route_reason": "complexity_large"},
    3: {"paused_ms": 6},
    4: {"http_request_id": "req_1", "endpoint": "/v1/completions", "streamed": True},
    5: {"http_status": 200},
    6: {"estimated": True},
}
"""Fields that a version added."""


_TENANT = {"tenant_id": "acme", "key_id": "acmekey00001", "tier": "premium", "tier_served": "premium"}
_REQUEST = _TENANT | {"requested_model": "large", "served_model": "large", "model_version": "f00d"}


def former_event(version: int, sequence: int) -> dict[str, Any]:
    """One event, with the fields that version had. `occurred_at` is `occurred_ms`, in UTC."""
    event: dict[str, Any] = {
        "event_id": f"01900000-0000-7000-8000-{sequence:012}",
        "source": SOURCE,
        "sequence": sequence,
        "schema_version": version,
        "request_id": f"cmpl-{sequence}",
        **_REQUEST,
        "adapter_id": "",
        "prompt_tokens": 100 + sequence,
        "cached_tokens": 64,
        "completion_tokens": 10,
        "undelivered_tokens": 1,
        "draft_tokens": 8,
        "accepted_draft_tokens": 5,
        "ttft_ms": None if sequence % 2 else 40,
        "total_latency_ms": 400,
        "queue_ms": 3,
        "engine_ns": 5_000_000,
        "recompute_ns": {"premium": 7},
        "preemptions": 1,
        "finish_reason": "stop",
        "price_version": "large@2026-01-01T00:00:00.000Z",
        "cost_nanodollars": 1_000 * sequence,
        "occurred_at": f"2026-03-01T00:{sequence:02}:00+00:00",
    }
    for added in _AFTER:
        if added <= version:
            event |= _AFTER[added]
    return event


def occurred_ms(sequence: int) -> int:
    return MARCH_MS + 60_000 * sequence


def opening(version: int, request_id: str) -> dict[str, Any]:
    """The record that opens a running request."""
    return {
        "event_id": "01900000-0000-7000-8000-999999999999",
        "request_id": request_id,
        **_REQUEST,
        "price": {"version": "p1", "prompt": 250, "cached_prompt": 125, "completion": 1000},
        "opened_ms": MARCH_MS,
    } | (dict(_AFTER[2]) if version >= 2 else {})
