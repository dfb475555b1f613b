"""The usage event keeps its meaning on every way that it travels."""

from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import get_type_hints

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.ids import new_event_id
from gateway.common.timestamps import unix_ms, utc_from_ms
from gateway.metering.event import Ending, InvalidEvent, UsageEvent
from gateway.metering.journal.usage_context import UsageContext
from tests.support.usage_events import an_event
from tests.support.usage_requests import a_usage_context

COUNTS = st.integers(0, 2**63 - 1)
NAMES = st.text(max_size=20).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))


BY_TYPE = {str: NAMES, int: COUNTS, bool: st.booleans()}
DEFAULTS = {"schema_version", "http_status", "estimated", "draft_tokens", "accepted_draft_tokens"}
KINDS = {name: kind for name, kind in get_type_hints(UsageEvent).items() if name not in DEFAULTS}
EVENTS = st.builds(
    UsageEvent,
    **{name: BY_TYPE[kind] for name, kind in KINDS.items() if kind in BY_TYPE},
    event_id=st.uuids(),
    ttft_ms=st.none() | COUNTS,
    http_status=st.just(0) | st.integers(100, 599),
    estimated=st.booleans(),
    recompute_ns=st.dictionaries(NAMES, COUNTS, max_size=3).map(MappingProxyType),
    finish_reason=st.sampled_from(Ending),
    occurred_at=st.integers(0, 4_000_000_000_000).map(utc_from_ms),
)


@given(EVENTS)
def test_what_is_written_is_read_again(event: UsageEvent) -> None:
    assert UsageEvent.from_json(event.to_json()) == event


@pytest.mark.parametrize("name", [each.name for each in fields(UsageEvent)])
def test_a_missing_field_is_named(name: str) -> None:
    stated = orjson.loads(an_event().to_json())
    del stated[name]
    with pytest.raises(InvalidEvent, match=name):
        UsageEvent.from_json(orjson.dumps(stated))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("event_id", "x"),
        ("sequence", -1),
        ("prompt_tokens", 1.0),
        ("completion_tokens", True),
        ("cost_nanodollars", 2**63),
        ("finish_reason", "done"),
        ("occurred_at", "2026-01-01T00:00:00"),
        ("recompute_ns", [1]),
        ("recompute_ns", {"premium": -1}),
        ("tenant_id", None),
        ("ttft_ms", "1"),
        ("schema_version", 7),
        ("estimated", 1),
        ("http_status", 99),
        ("http_status", 600),
        ("http_status", "200"),
        ("http_status", True),
        ("streamed", 1),
        ("endpoint", None),
        ("schema_version", [3]),
        ("schema_version", True),
    ],
)
def test_a_wrong_value_is_named(name: str, value: object) -> None:
    stated = orjson.loads(an_event().to_json()) | {name: value}
    with pytest.raises(InvalidEvent, match=name):
        UsageEvent.from_json(orjson.dumps(stated))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff"])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidEvent):
        UsageEvent.from_json(data)


def before_routing() -> dict[str, object]:
    """An event as version 1 wrote it."""
    stated = orjson.loads(an_event(schema_version=1, requested_model="m", served_model="m").to_json())
    assert stated.keys().isdisjoint({"routed_model", "route_reason"})
    return stated


def test_an_event_of_before_routing_is_read_and_passed_on_as_it_was() -> None:
    event = UsageEvent.from_json(orjson.dumps(before_routing()))
    assert (event.schema_version, event.routed_model, event.route_reason) == (1, "m", "explicit")
    assert orjson.loads(event.to_json()) == before_routing() | {"event_id": str(event.event_id)}


def test_version_1_has_none_of_the_later_fields() -> None:
    with pytest.raises(InvalidEvent, match="route_reason"):
        UsageEvent.from_json(orjson.dumps(before_routing() | {"route_reason": "explicit"}))


def before_pauses() -> dict[str, object]:
    """An event as version 2 wrote it."""
    stated = orjson.loads(an_event(schema_version=2).to_json())
    assert "paused_ms" not in stated
    assert "route_reason" in stated
    return stated


def test_an_event_of_before_pauses_is_read_and_passed_on_as_it_was() -> None:
    event = UsageEvent.from_json(orjson.dumps(before_pauses()))
    assert (event.schema_version, event.paused_ms) == (2, 0)
    assert orjson.loads(event.to_json()) == before_pauses() | {"event_id": str(event.event_id)}


def before_http_requests() -> dict[str, object]:
    """An event as version 3 wrote it."""
    stated = orjson.loads(an_event(schema_version=3).to_json())
    assert stated.keys().isdisjoint({"http_request_id", "endpoint", "streamed"})
    return stated


def test_an_event_of_before_http_requests_is_read_and_passed_on_as_it_was() -> None:
    event = UsageEvent.from_json(orjson.dumps(before_http_requests()))
    assert (event.schema_version, event.http_request_id, event.endpoint, event.streamed) == (3, "", "", False)
    assert orjson.loads(event.to_json()) == before_http_requests() | {"event_id": str(event.event_id)}


def test_an_event_of_before_estimates_is_read_and_passed_on_as_it_was() -> None:
    before = orjson.loads(an_event(schema_version=5).to_json())
    assert "estimated" not in before
    event = UsageEvent.from_json(orjson.dumps(before))
    assert (event.schema_version, event.estimated) == (5, False)
    assert orjson.loads(event.to_json()) == before
    with pytest.raises(InvalidEvent, match="estimated"):
        UsageEvent.from_json(orjson.dumps(before | {"estimated": True}))


def test_an_event_of_before_statuses_is_read_and_passed_on_as_it_was() -> None:
    before = orjson.loads(an_event(schema_version=4).to_json())
    assert "http_status" not in before
    event = UsageEvent.from_json(orjson.dumps(before))
    assert (event.schema_version, event.http_status) == (4, 0)
    assert orjson.loads(event.to_json()) == before
    with pytest.raises(InvalidEvent, match="http_status"):
        UsageEvent.from_json(orjson.dumps(before | {"http_status": 200}))


@pytest.mark.parametrize("before", [before_routing, before_pauses])
def test_a_former_version_has_no_pause(before: Callable[[], dict[str, object]]) -> None:
    with pytest.raises(InvalidEvent, match="paused_ms"):
        UsageEvent.from_json(orjson.dumps(before() | {"paused_ms": 0}))


def test_a_request_of_before_routing_that_a_crash_left_open_can_be_billed() -> None:
    usage_context = a_usage_context("r")
    stated = orjson.loads(usage_context.to_json())
    del stated["routed_model"], stated["route_reason"]
    assert UsageContext.from_json(orjson.dumps(stated)) == usage_context


def test_an_unknown_field_is_refused() -> None:
    stated = orjson.loads(an_event().to_json()) | {"more": 1}
    with pytest.raises(InvalidEvent, match="more"):
        UsageEvent.from_json(orjson.dumps(stated))


def test_event_ids_are_of_version_7_and_sort_by_their_millisecond() -> None:
    ids = [new_event_id(now_ms) for now_ms in (1, 2, 2**40, 2**48 - 1)]
    assert ids == sorted(ids)
    assert all(each.version == 7 and each.variant == "specified in RFC 4122" for each in ids)
    assert len({new_event_id(7) for _ in range(1000)}) == 1000


@given(st.integers(0, 4_000_000_000_000))
def test_an_instant_is_kept_to_the_millisecond(now_ms: int) -> None:
    event = an_event(occurred_at=utc_from_ms(now_ms))
    assert unix_ms(UsageEvent.from_json(event.to_json()).occurred_at) == now_ms


def test_an_instant_of_another_zone_is_the_same_instant() -> None:
    there = datetime(2026, 1, 1, 1, 2, 3, 456000, timezone(timedelta(hours=1)))
    stated = orjson.loads(an_event().to_json()) | {"occurred_at": there.isoformat()}
    assert UsageEvent.from_json(orjson.dumps(stated)).occurred_at == there
