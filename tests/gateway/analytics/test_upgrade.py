"""The tables of each former version, filled, come up to date: every event is there, and the sums are of all of them."""

from datetime import datetime
from unittest.mock import patch
from uuid import UUID

import orjson
import pytest

from gateway.analytics import Analytics, migrate, schema
from gateway.analytics.rollups import find_drift, rebuild
from gateway.analytics.schema import shipped_migrations
from gateway.analytics.sums import Grain
from gateway.metering.event import COLUMNS, UsageEvent
from gateway.metering.sink.intake import row_of
from tests.gateway.upgrades.former_usage import former_event
from tests.support.usage_samples import MARCH, event, store

NEWEST = max(each.version for each in shipped_migrations())
EVENT_VERSIONS = {1: 1, 2: 1, 3: 2, 4: 3, 5: 3, 6: 3, 7: 3, 8: 3, 9: 4, 10: 5}
"""By the version of the tables: what the program of that time wrote into them."""


def test_every_version_is_tried() -> None:
    assert sorted(EVENT_VERSIONS) == list(range(1, NEWEST))


@pytest.mark.parametrize("version", EVENT_VERSIONS)
async def test_filled_tables_come_up_to_date(version: int, empty_analytics: Analytics) -> None:
    before = [each for each in shipped_migrations() if each.version <= version]
    with patch.object(schema, "shipped_migrations", return_value=before):
        await migrate(empty_analytics)
    old = [former_event(EVENT_VERSIONS[version], sequence) for sequence in range(1, 6)]
    rows = [list(_stored(each).values()) for each in old]
    await empty_analytics.insert("usage_events", list(old[0]), [*rows, rows[0]])  # one came twice

    await migrate(empty_analytics)

    found = await empty_analytics.query(f"SELECT {', '.join(COLUMNS)} FROM usage_events FINAL ORDER BY sequence")
    assert found == [row_of(UsageEvent.from_json(orjson.dumps(each))) for each in old]
    await store(empty_analytics, [event(6)])
    await rebuild(empty_analytics, MARCH)
    for grain in Grain:
        assert not await find_drift(empty_analytics, grain, MARCH)
        [sums] = await empty_analytics.query(
            f"SELECT sum(events), sum(prompt_tokens), sum(completion_tokens), sum(cost_nanodollars) FROM {grain.table}"
        )
        prompts = sum(each["prompt_tokens"] for each in old) + 100
        assert sums == (6, prompts, 60, sum(each["cost_nanodollars"] for each in old) + 1_000)


def _stored(written: dict) -> dict:
    """With values as their columns take them."""
    return written | {
        "event_id": UUID(written["event_id"]),
        "occurred_at": datetime.fromisoformat(written["occurred_at"]),
    }
