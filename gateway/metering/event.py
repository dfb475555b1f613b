"""The usage event: consumption and cost of one request. Every billed amount is a sum of events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self
from uuid import UUID

import orjson

from gateway.common.timestamps import unix_ms
from gateway.routing.reason import RouteReason

SCHEMA_VERSION = 6
"""Version 1 has no `routed_model` and no `route_reason`. Version 2 has no `paused_ms`. Version 3 has no
`http_request_id`, `endpoint` and `streamed`. Version 4 has no `http_status`. Version 5 has no `estimated`."""


class Ending(StrEnum):
    """Why a request ended. `stop`, `length` and `tool_calls` are OpenAI's. `quota`: a limit or the budget ended it.
    `cancelled`: the client disconnected. `interrupted`: the gateway crashed; its next start recovered the request from
    the journal."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    QUOTA = "quota"
    ERROR = "error"
    INTERRUPTED = "interrupted"


class InvalidEvent(ValueError):
    """Bytes that are not a usage event of a known version. The message names the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageEvent:
    """One request's consumption. The field names are the columns of `usage_events` in ClickHouse.

    `event_id`: identity for deduplication. `source`: id of the journal. `sequence`: number in the journal: 1, 2, 3, ...
    without a gap. `request_id`: id in the answer's body. `http_request_id`: the `x-request-id` header, which a client
    may choose, so it is not unique. `endpoint`: path of the HTTP request. `http_status`: status of its response; 499 if
    the client disconnected before the response started, 0 if it is unknown, as after a crash. A stream that fails has
    the status with which it started. `requested_model`: name that the client sent. `routed_model`: model that routing
    chose, for `route_reason`. `served_model`: version of it that answered. `model_version`: of its weights, followed by
    the first digits of the adapter's digest. `adapter_id`: the tenant's adapter that answered; empty: none. Billed are
    `prompt_tokens` (of which `cached_tokens` are prefix cache hits) and `completion_tokens`, which were sent to the
    client. `estimated`: the server of the model reported no usage, and at least one of these counts is an estimate.
    `undelivered_tokens`: computed and not sent. `queue_ms`: wait until first admitted. `paused_ms`: time paused
    because the client did not read. `engine_ns`: the request's share of its engine steps. `recompute_ns`: recomputation
    after preemptions, by the class that preempted. `cost_nanodollars` is final: tokens at the price version of the
    request. `occurred_at`: end of the request, UTC, in milliseconds.
    """

    event_id: UUID
    source: str
    sequence: int
    schema_version: int = SCHEMA_VERSION
    request_id: str
    http_request_id: str = ""
    endpoint: str = ""
    streamed: bool = False
    http_status: int = 0
    tenant_id: str
    key_id: str
    tier: str
    tier_served: str
    requested_model: str
    routed_model: str
    served_model: str
    model_version: str
    route_reason: str
    adapter_id: str = ""
    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int
    estimated: bool = False
    undelivered_tokens: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    ttft_ms: int | None = None
    total_latency_ms: int
    queue_ms: int = 0
    paused_ms: int = 0
    engine_ns: int = 0
    recompute_ns: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    preemptions: int = 0
    finish_reason: Ending
    price_version: str
    cost_nanodollars: int
    occurred_at: datetime

    def to_json(self) -> bytes:
        """One JSON object, the form in the journal and in Kafka."""
        return orjson.dumps({name: getattr(self, name) for name in _FIELDS[self.schema_version]}, default=dict)

    def canonical(self) -> bytes:
        """The canonical form, over which signatures are made: one JSON object of the version's fields with sorted keys
        and the timestamp in Unix milliseconds. Equal events have equal bytes, whichever store they come from."""
        stated = {name: getattr(self, name) for name in _FIELDS[self.schema_version]}
        stated["occurred_at"] = unix_ms(self.occurred_at)
        return orjson.dumps(stated, default=dict, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """
        Raises:
            InvalidEvent: not one JSON object with exactly the fields of its version, each of its type and range.
        """
        try:
            stated = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise InvalidEvent(f"not JSON: {error}") from None
        if not isinstance(stated, dict):
            raise InvalidEvent("not a JSON object")
        version = stated.get("schema_version")
        if type(version) is not int or version not in _FIELDS:
            raise InvalidEvent(f"schema_version is {version!r}, not one of {', '.join(map(str, _FIELDS))}")
        if odd := set(stated) ^ set(_FIELDS[version]):
            raise InvalidEvent(f"missing or unknown fields: {', '.join(sorted(odd))}")
        values = {name: _read(name, value) for name, value in stated.items()}
        return cls(**(unrouted(values["served_model"]) | values))


def canonical_of(body: bytes) -> bytes:
    """`UsageEvent.canonical` of the bytes from `to_json`, without making an event.

    Raises:
        ValueError, KeyError, TypeError: other bytes.
    """
    stated = orjson.loads(body)
    stated["occurred_at"] = unix_ms(_instant(stated["occurred_at"]))
    return orjson.dumps(stated, option=orjson.OPT_SORT_KEYS)


def unrouted(model: str) -> dict[str, str]:
    """Fields that version 1 lacks: without routing, the requested model answered."""
    return {"routed_model": model, "route_reason": RouteReason.EXPLICIT.value}


COLUMNS = tuple(each.name for each in fields(UsageEvent))
HTTP_FIELDS = frozenset({"http_request_id", "endpoint", "streamed"})
"""Fields that version 3 lacks."""
_BEFORE_ESTIMATES = tuple(name for name in COLUMNS if name != "estimated")
_BEFORE_STATUS = tuple(name for name in _BEFORE_ESTIMATES if name != "http_status")
_BEFORE_HTTP = tuple(name for name in _BEFORE_STATUS if name not in HTTP_FIELDS)
_BEFORE_PAUSES = tuple(name for name in _BEFORE_HTTP if name != "paused_ms")
_FIELDS = {
    1: tuple(name for name in _BEFORE_PAUSES if name not in unrouted("")),
    2: _BEFORE_PAUSES,
    3: _BEFORE_HTTP,
    4: _BEFORE_STATUS,
    5: _BEFORE_ESTIMATES,
    SCHEMA_VERSION: COLUMNS,
}
VERSIONS = frozenset(_FIELDS)

MAX_COUNT = 2**63 - 1
_COUNTS = frozenset(
    {
        "sequence",
        "schema_version",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "undelivered_tokens",
        "draft_tokens",
        "accepted_draft_tokens",
        "total_latency_ms",
        "queue_ms",
        "paused_ms",
        "engine_ns",
        "preemptions",
        "cost_nanodollars",
    }
)


def _read(name: str, value: Any) -> Any:
    """A field's value from its JSON form."""
    read: Callable[[Any], Any] = _READERS.get(name, _text)
    try:
        return read(value)
    except (ValueError, TypeError, AttributeError):
        raise InvalidEvent(f"{name} is {str(value)[:80]!r}") from None


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise ValueError
    return value


def _status(value: Any) -> int:
    if type(value) is not int or not (value == 0 or 100 <= value <= 599):
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _instant(value: str) -> datetime:
    instant = datetime.fromisoformat(value)
    if instant.tzinfo is None:
        raise ValueError
    return instant.astimezone(UTC)


def _counts_by_class(value: Any) -> Mapping[str, int]:
    return MappingProxyType({_text(name): _count(each) for name, each in value.items()})


_READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_COUNTS, _count),
    "event_id": UUID,
    "finish_reason": Ending,
    "streamed": _flag,
    "estimated": _flag,
    "http_status": _status,
    "occurred_at": _instant,
    "ttft_ms": lambda value: None if value is None else _count(value),
    "recompute_ns": _counts_by_class,
}
"""Readers of the fields that are not text."""


def admitted_ms(event: UsageEvent) -> int:
    """When the request was admitted, Unix milliseconds."""
    return unix_ms(event.occurred_at) - event.total_latency_ms
