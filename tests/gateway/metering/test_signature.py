"""A signature holds for one event, in every form that the event takes on its way, and for nothing else."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.analytics import migrate
from gateway.metering.event import COLUMNS, Ending, UsageEvent
from gateway.metering.signature import UPGRADE_GRACE_MS, EventSigner, SignaturePolicy, UnauthenticatedEvent
from gateway.metering.sink.intake import EVENTS_TABLE, Intake, event_of, row_of
from tests.support.usage_requests import SIGNER, a_message, an_event, analytics_at

_COUNTS = st.integers(0, 2**63 - 1)
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "event_id": st.uuids(),
    "source": st.text(),
    "sequence": _COUNTS,
    "schema_version": st.sampled_from([1, 2, 3, 4, 5]),
    "request_id": st.text(),
    "tenant_id": st.text(),
    "key_id": st.text(),
    "served_model": st.text(),
    "prompt_tokens": _COUNTS,
    "cached_tokens": _COUNTS,
    "completion_tokens": _COUNTS,
    "ttft_ms": st.none() | _COUNTS,
    "recompute_ns": st.dictionaries(st.text(), _COUNTS, max_size=4),
    "finish_reason": st.sampled_from(Ending),
    "price_version": st.text(),
    "cost_nanodollars": _COUNTS,
    "occurred_at": st.datetimes(datetime(2000, 1, 1), datetime(2199, 12, 31), timezones=st.just(UTC)).map(
        lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    ),
}
events = st.fixed_dictionaries(_FIELDS).map(lambda fields: replace(an_event(1), **fields))


@given(event=events)
def test_it_holds_for_the_event_as_it_was_sent_and_as_it_is_stored(event: UsageEvent) -> None:
    signature = SIGNER.sign(event)
    read = UsageEvent.from_json(event.to_json())
    SIGNER.verify(read, signature)
    SIGNER.verify(event_of(row_of(read)), signature)
    assert SIGNER.sign_json(event.to_json()) == signature
    reordered = dict(reversed(event.recompute_ns.items()))
    elsewhere = event.occurred_at.astimezone(timezone(timedelta(hours=5)))
    SIGNER.verify(replace(event, recompute_ns=reordered, occurred_at=elsewhere), signature)


@given(event=events, data=st.data())
def test_it_does_not_hold_when_a_field_is_another(event: UsageEvent, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(_FIELDS)))
    value = data.draw(_FIELDS[name].filter(lambda drawn: drawn != getattr(event, name)))
    with pytest.raises(UnauthenticatedEvent):
        SIGNER.verify(replace(event, **{name: value}), SIGNER.sign(event))


@given(signature=st.text())
def test_no_text_is_a_signature(signature: str) -> None:
    with pytest.raises(UnauthenticatedEvent):
        SIGNER.verify(an_event(1), signature)


def test_every_column_is_signed() -> None:
    """Of the newest version: a field that is added is in it, too."""
    changes: dict[type, Any] = {str: "other", int: 77, dict: {"x": 1}, UUID: UUID(int=1)}
    event = an_event(1)
    for name in COLUMNS:
        if name == "schema_version":
            continue
        value = getattr(event, name)
        other = {
            "occurred_at": event.occurred_at + timedelta(milliseconds=1),
            "finish_reason": Ending.ERROR,
            "recompute_ns": {"x": 1},
            "ttft_ms": 78,
            "streamed": True,
            "estimated": True,
        }.get(name, changes.get(type(value)))
        assert other is not None, name
        with pytest.raises(UnauthenticatedEvent):
            SIGNER.verify(replace(event, **{name: other}), SIGNER.sign(event))


def test_another_pepper_is_named() -> None:
    other = EventSigner(b"another pepper, also of 32 bytes")
    with pytest.raises(UnauthenticatedEvent, match="pepper"):
        SIGNER.verify(an_event(1), other.sign(an_event(1)))
    stated, _, mac = SIGNER.sign(an_event(1)).partition(":")
    assert (len(stated), len(mac)) == (16, 64)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"occurred_at": 1}', b'{"occurred_at": "x"}', b"\xff"])
def test_what_is_no_event_has_no_signature(body: bytes) -> None:
    assert SIGNER.sign_json(body) == ""


async def test_a_new_store_accepts_nothing_unsigned() -> None:
    async with analytics_at("chdb://memory") as analytics:
        policy = SignaturePolicy(SIGNER)
        assert await policy.unsigned_until_ms(analytics) == 0
        await Intake(analytics, lambda _, signature: signature).store("usage", 0, [a_message(0, an_event(1))])
        await analytics.command("DELETE FROM schema_versions WHERE version = 6")
        await migrate(analytics)  # as another process does that runs a newer version
        assert await policy.unsigned_until_ms(analytics) == 0
        stated = SignaturePolicy(SIGNER, datetime(2026, 1, 1, tzinfo=UTC))
        assert await stated.unsigned_until_ms(analytics) == 1_767_225_600_000


async def test_a_store_with_events_of_before_accepts_others_for_a_day() -> None:
    async with analytics_at("chdb://memory") as analytics:
        await analytics.command("ALTER TABLE usage_events DROP COLUMN signature")
        await analytics.insert(EVENTS_TABLE, COLUMNS, [row_of(an_event(1))])
        await analytics.command("DELETE FROM schema_versions WHERE version = 6")
        await migrate(analytics)
        [(upgraded_ms,)] = await analytics.query("SELECT toUnixTimestamp64Milli(now64(3))")
        until_ms = await SignaturePolicy(SIGNER).unsigned_until_ms(analytics)
        assert upgraded_ms - 60_000 < until_ms - UPGRADE_GRACE_MS <= upgraded_ms
        await analytics.command("DELETE FROM schema_versions WHERE version = 6")
        await migrate(analytics)
        assert await SignaturePolicy(SIGNER).unsigned_until_ms(analytics) == until_ms, "the first upgrade counts"
