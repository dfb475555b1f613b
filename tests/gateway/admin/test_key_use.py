"""Search of tenants' keys; their last use, spending and creators."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.analytics import Analytics, open_analytics
from gateway.analytics.prepared import PreparedAnalytics
from gateway.billing.prices import Price
from gateway.metering.event import COLUMNS
from tests.gateway.admin.harness import NOON, Admin, AwayAnalytics, new_tenant
from tests.support.billing import an_event

PRICE = Price("m@1", 150, 75, 600)


@pytest.fixture
async def analytics(tmp_path: Path, anyio_backend: str, request: pytest.FixtureRequest) -> AsyncIterator[Analytics]:
    if getattr(request, "param", "") == "away":
        yield AwayAnalytics()
        return
    store = PreparedAnalytics(open_analytics(f"chdb://{tmp_path / 'analytics'}"))
    yield store
    await store.aclose()


async def keys_of(admin: Admin, tenant: str, *names: str) -> tuple[str, list[str]]:
    tenant_id = (await new_tenant(admin, tenant))["id"]
    return tenant_id, [(await admin.post(f"/tenants/{tenant_id}/keys", {"name": name}))["id"] for name in names]


async def use_of(admin: Admin, *ids: str, **params: str) -> list[dict]:
    return (await admin.get("/key-use", "viewer", params={"ids": ",".join(ids), **params}))["data"]


async def test_use_and_spending_come_from_the_events(admin: Admin, analytics: Analytics) -> None:
    acme, (used, idle) = await keys_of(admin, "acme", "used", "idle")
    globex, (other,) = await keys_of(admin, "globex", "other")
    events = [
        an_event(acme, NOON - timedelta(minutes=20), PRICE, (10, 0, 1), key_id=used),
        an_event(acme, NOON - timedelta(hours=5), PRICE, (20, 0, 2), key_id=used),
        an_event(globex, datetime(2025, 12, 3, 9, 30, tzinfo=UTC), PRICE, (40, 0, 4), key_id=other),
    ]
    rows = [[getattr(event, name) for name in COLUMNS] for event in events]
    for row in rows:
        row[COLUMNS.index("recompute_ns")] = dict(row[COLUMNS.index("recompute_ns")])
    await analytics.insert("usage_events", COLUMNS, rows)
    await admin.post(f"/tenants/{globex}/suspend", status=200)

    found = {each["id"]: each for each in await use_of(admin, used, idle, other, "000000000000")}
    assert found.keys() == {used, idle, other}
    assert (found[used]["last_used_at"], found[used]["month_spent_nanodollars"]) == (
        "2026-01-02T11:00:00.000000Z",
        30 * 150 + 3 * 600,
    )
    assert (found[idle]["last_used_at"], found[idle]["month_spent_nanodollars"]) == (None, 0)
    assert (found[other]["last_used_at"], found[other]["month_spent_nanodollars"]) == (
        "2025-12-03T09:00:00.000000Z",
        0,
    )
    assert [(found[key]["tenant"], found[key]["tenant_is_suspended"]) for key in (used, other)] == [
        ("acme", False),
        ("globex", True),
    ]
    assert found[used]["created_by"] == "a admin"
    assert [each["id"] for each in await use_of(admin, used, other, tenant_id=globex)] == [other]


@pytest.mark.parametrize("analytics", ["away"], indirect=True)
async def test_without_the_usage_store_the_rest_is_known(admin: Admin) -> None:
    _, (key,) = await keys_of(admin, "acme", "first")
    (use,) = await use_of(admin, key)
    assert (use["last_used_at"], use["month_spent_nanodollars"], use["created_by"]) == (None, None, "a admin")


async def test_keys_are_found_by_name_id_and_tenant(admin: Admin) -> None:
    _, (batch, web) = await keys_of(admin, "acme", "Batch jobs", "web")
    _, (other,) = await keys_of(admin, "globex", "web")
    await admin.post(f"/keys/{web}/revoke", status=200)
    for params, expected in (
        ({"search": "batch"}, {batch}),
        ({"search": "web"}, {web, other}),
        ({"search": "GLOBEX"}, {other}),
        ({"search": batch}, {batch}),
        ({"search": "%"}, set()),
        ({"revoked": "true"}, {web}),
        ({"revoked": "false", "search": "acme"}, {batch}),
    ):
        found = (await admin.get("/keys", params=params))["data"]
        assert {each["id"] for each in found} == expected, params


@pytest.mark.parametrize("ids", ["", "x", "000000000000,"])
async def test_what_names_no_key_is_refused(admin: Admin, ids: str) -> None:
    assert (await admin.refused(400, "GET", "/key-use", params={"ids": ids}))["param"].startswith("ids")
