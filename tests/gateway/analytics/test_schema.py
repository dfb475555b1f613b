"""The first process to arrive creates the tables, once, and a schema that it does not know is an error."""

import asyncio
from unittest.mock import patch

import orjson
import pytest

from gateway.analytics import Analytics, AnalyticsRefused, AnalyticsSchemaMismatch, migrate, open_analytics, schema
from gateway.analytics.schema import Migration, shipped_migrations
from gateway.analytics.usage import EVENT_COLUMNS
from gateway.metering.event import COLUMNS, HTTP_FIELDS, UsageEvent, unrouted
from gateway.metering.sink.intake import STORED_COLUMNS, row_of
from tests.support.usage_samples import event, store


async def test_an_event_has_the_columns_of_its_table(analytics: Analytics) -> None:
    described = await analytics.query(
        "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = 'usage_events' "
        "ORDER BY position"
    )
    assert [name for (name,) in described] == [*EVENT_COLUMNS, "signature"] == list(STORED_COLUMNS)
    assert list(EVENT_COLUMNS) == list(COLUMNS)


async def test_migrating_again_changes_nothing(analytics: Analytics) -> None:
    await store(analytics, [event(1)])
    await migrate(analytics)
    assert await analytics.query("SELECT count() FROM usage_events") == [(1,)]
    versions = await analytics.query("SELECT version, name FROM schema_versions ORDER BY version")
    assert versions == sorted((each.version, each.name) for each in shipped_migrations())


async def test_several_may_migrate_at_once(clickhouse_url: str) -> None:
    stores = [open_analytics(clickhouse_url) for _ in range(5)]
    async with asyncio.TaskGroup() as all_of_them:
        for each in stores:
            all_of_them.create_task(migrate(each))
    await store(stores[0], [event(1)])
    assert await stores[1].query("SELECT events FROM usage_by_day") == [(1,)]
    for each in stores:
        await each.aclose()


async def test_a_migration_that_was_cut_short_is_repeated(empty_analytics: Analytics) -> None:
    last = max(shipped_migrations(), key=lambda each: each.version)
    broken = Migration(last.version, last.name, last.sql + "\nCREATE TABLE oops;\n")
    before = [each for each in shipped_migrations() if each != last]
    with patch.object(schema, "shipped_migrations", return_value=[*before, broken]), pytest.raises(AnalyticsRefused):
        await migrate(empty_analytics)
    await migrate(empty_analytics)
    await store(empty_analytics, [event(1)])
    assert await empty_analytics.query("SELECT events FROM usage_by_minute") == [(1,)]


async def test_events_of_before_routing_say_that_their_model_was_named(empty_analytics: Analytics) -> None:
    before = [each for each in shipped_migrations() if each.version < 3]
    with patch.object(schema, "shipped_migrations", return_value=before):
        await migrate(empty_analytics)
    later = {*unrouted(""), "paused_ms", *HTTP_FIELDS, "http_status", "estimated"}
    old = {name: value for name, value in event(1, schema_version=1).items() if name not in later}
    await empty_analytics.insert("usage_events", list(old), [list(old.values())])
    await migrate(empty_analytics)
    rows = await empty_analytics.query(f"SELECT {', '.join(COLUMNS)} FROM usage_events")
    assert rows == [row_of(UsageEvent.from_json(orjson.dumps(old)))], "as the journal says, for reconciliation"


async def test_events_of_before_pauses_had_none(empty_analytics: Analytics) -> None:
    before = [each for each in shipped_migrations() if each.version < 4]
    with patch.object(schema, "shipped_migrations", return_value=before):
        await migrate(empty_analytics)
    later = {"paused_ms", *HTTP_FIELDS, "http_status", "estimated"}
    old = {name: value for name, value in event(1, schema_version=2).items() if name not in later}
    await empty_analytics.insert("usage_events", list(old), [list(old.values())])
    await migrate(empty_analytics)
    rows = await empty_analytics.query(f"SELECT {', '.join(COLUMNS)} FROM usage_events")
    assert rows == [row_of(UsageEvent.from_json(orjson.dumps(old)))], "as the journal says, for reconciliation"


async def test_tables_of_a_newer_program_are_left_alone(analytics: Analytics) -> None:
    await analytics.insert("schema_versions", ["version", "name", "sha256"], [[9999, "future", ""]])
    with pytest.raises(AnalyticsSchemaMismatch, match="9999"):
        await migrate(analytics)


async def test_a_file_that_was_applied_cannot_be_changed(analytics: Analytics) -> None:
    changed = [Migration(each.version, each.name, each.sql + "-- or so\n") for each in shipped_migrations()]
    with (
        patch.object(schema, "shipped_migrations", return_value=changed),
        pytest.raises(AnalyticsSchemaMismatch, match="0001_"),
    ):
        await migrate(analytics)


def test_versions_are_numbered_without_a_hole() -> None:
    versions = sorted(each.version for each in shipped_migrations())
    assert versions == list(range(1, len(versions) + 1))
