"""Requests as lines of a CSV file."""

from collections.abc import Mapping
from typing import Any

from gateway.management.console.names import Names

CSV_COLUMNS = (
    "ended_at",
    "request_id",
    "http_request_id",
    "tenant",
    "tenant_id",
    "key",
    "key_id",
    "requested_model",
    "model",
    "tier",
    "endpoint",
    "streamed",
    "finish_reason",
    "http_status",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "estimated",
    "ttft_ms",
    "total_latency_ms",
    "queue_ms",
    "paused_ms",
    "price_version",
    "cost_dollars",
)


def csv_row(request: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """The values of `CSV_COLUMNS`. A number that a request lacks is an empty cell."""
    row = {name: "" if request.get(name) is None else request.get(name) for name in CSV_COLUMNS}
    return row | {
        "ended_at": request["occurred_at"],
        "tenant": names.tenant(request["tenant_id"]),
        "key": names.key(request["key_id"]),
        "tier": request["tier_served"],
        "streamed": "yes" if request["streamed"] else "no",
        "estimated": "yes" if request["estimated"] else "no",
    }
