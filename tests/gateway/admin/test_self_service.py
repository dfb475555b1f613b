"""A tenant's own usage, refusals and limits, and no other tenant's."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jsonschema
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from gateway.admission import Limiter, MemoryStore
from gateway.analytics import open_analytics
from gateway.analytics.prepared import PreparedAnalytics
from gateway.app import create_app
from gateway.billing.prices import Price
from gateway.config.settings import Settings
from gateway.metering.event import COLUMNS, UsageEvent
from gateway.metering.journal.journal import Journal
from gateway.reference.document import v1_document
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import KeyScope, Limits, ScopedLimits, ScopeKind
from tests.gateway.admin.harness import AwayAnalytics
from tests.support.billing import an_event
from tests.support.error_envelope import error_of
from tests.support.fake_engine import FakeEngine
from tests.support.gateway import KEY, PREMIUM_KEY, FakeAuthenticator
from tests.support.services import services_with

MINE = {"authorization": f"Bearer {KEY}"}
THEIRS = {"authorization": f"Bearer {PREMIUM_KEY}"}


@pytest.fixture
def authenticator() -> FakeAuthenticator:
    return FakeAuthenticator()


@pytest.fixture
def serving(authenticator: FakeAuthenticator, tmp_path: Path):
    @contextmanager
    def serving(analytics) -> Iterator[TestClient]:
        given = {
            "analytics": analytics,
            "metrics": Metrics(lambda: {}),
            "limiter": Limiter(MemoryStore()),
            "journal": Journal(tmp_path / "journal.db", interval_ms=5, min_free_bytes=0),
        }
        settings = Settings(data_dir=tmp_path)
        app: Starlette = create_app(settings, services_with(tmp_path, FakeEngine(), authenticator, **given))
        with TestClient(app) as client:
            yield client

    return serving


async def store(analytics: PreparedAnalytics, events: list[UsageEvent]) -> None:
    rows = [[getattr(event, name) for name in COLUMNS] for event in events]
    column = COLUMNS.index("recompute_ns")
    for row in rows:
        row[column] = dict(row[column])
    await analytics.insert("usage_events", COLUMNS, rows)


@pytest.fixture
def client(serving, tmp_path: Path) -> Iterator[TestClient]:
    """With an hour's usage of two tenants."""
    analytics = PreparedAnalytics(open_analytics(f"chdb://{tmp_path / 'analytics'}"))
    at = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(minutes=30)
    price = Price("m@1", 150, 75, 600)
    events = [
        an_event("tenant-1", at, price, (100, 10, 5), sequence=1, key_id="pubid1"),
        an_event("tenant-1", at, price, (200, 0, 7), sequence=2, key_id="other"),
        an_event("tenant-2", at, price, (1000, 0, 1000), sequence=3, key_id="theirkey0000"),
    ]
    with serving(analytics) as client:
        client.portal.call(store, analytics, events)
        yield client


def test_usage_is_the_callers_own(client: TestClient) -> None:
    (mine,) = client.get("/v1/usage", headers=MINE).json()["data"]
    assert (mine["events"], mine["prompt_tokens"], mine["completion_tokens"]) == (2, 300, 12)
    assert mine["cost_nanodollars"] == 90 * 150 + 10 * 75 + 5 * 600 + 200 * 150 + 7 * 600
    assert mine["cost_dollars"] == "0.00005145"
    (theirs,) = client.get("/v1/usage", headers=THEIRS).json()["data"]
    assert (theirs["events"], theirs["prompt_tokens"]) == (1, 1000)


@pytest.mark.parametrize("query", ["", "?by=key,model&bucket=day"])
def test_usage_is_as_the_openapi_document_says(client: TestClient, query: str) -> None:
    document = v1_document()
    schema = {"$ref": "#/components/schemas/OwnUsage", "components": document["components"]}
    answer = client.get(f"/v1/usage{query}", headers=MINE).json()
    assert answer["data"]
    jsonschema.validate(answer, schema)


def test_usage_is_told_apart_and_filtered(client: TestClient) -> None:
    by_key = client.get("/v1/usage?by=key,model&bucket=minute", headers=MINE).json()["data"]
    assert {(each["key"], each["model"], each["events"]) for each in by_key} == {("pubid1", "m", 1), ("other", "m", 1)}
    assert client.get("/v1/usage?model=none", headers=MINE).json()["data"] == []


def test_another_tenants_usage_cannot_be_asked_for(client: TestClient) -> None:
    assert error_of(client.get("/v1/usage?tenant_id=tenant-2", headers=MINE), 400)["param"] == "tenant_id"
    assert error_of(client.get("/v1/usage?by=tenant", headers=MINE), 400)["param"] == "by[0]"
    assert client.get("/v1/usage?key_id=theirkey0000", headers=MINE).json()["data"] == []
    assert len(client.get("/v1/usage?key_id=theirkey0000", headers=THEIRS).json()["data"]) == 1
    text = "".join(
        client.get(f"/v1/usage?{query}", headers=MINE).text
        for query in ("", "by=key", "by=key,model,tier", "bucket=day", "model=m")
    )
    assert "tenant-2" not in text
    assert "theirkey0000" not in text


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("start=yesterday", "start"),
        ("start=2026-01-02T00:00:00Z&end=2026-01-01T00:00:00Z", "start"),
        ("start=2020-01-01T00:00:00Z", "start"),
        ("start=1999-01-01T00:00:00Z&end=1999-01-02T00:00:00Z", "start"),
        ("end=0001-01-01T00:00:00Z", "start"),
        ("bucket=second", "bucket"),
        ("bucket=minute&start=2026-01-01T00:00:00Z&end=2026-01-10T00:00:00Z", "bucket"),
        ("by=key,secret", "by[1]"),
        ("by=", "by[0]"),
        ("x=1", "x"),
    ],
)
def test_a_query_that_cannot_be(client: TestClient, query: str, param: str) -> None:
    assert error_of(client.get(f"/v1/usage?{query}", headers=MINE), 400)["param"] == param


def test_usage_while_its_store_is_away(serving) -> None:
    with serving(AwayAnalytics()) as client:
        response = client.get("/v1/usage", headers=MINE)
        assert error_of(response, 503)["code"] == "service_unavailable"
        assert response.headers["retry-after"] == "5"


def test_limits_are_the_callers_own(serving, authenticator: FakeAuthenticator) -> None:
    stated = (
        ScopedLimits(ScopeKind.TENANT, "", Limits(requests_per_minute=60)),
        ScopedLimits(ScopeKind.KEY, "pubid1", Limits(tokens_per_day=1000)),
        ScopedLimits(ScopeKind.MODEL, "tiny", Limits(concurrent=2)),
    )
    authenticator.principals[KEY] = replace(authenticator.principals[KEY], limits=stated)
    with serving(AwayAnalytics()) as client:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
        assert client.post("/v1/chat/completions", headers=MINE, json=body).status_code == 200
        mine = client.get("/v1/limits", headers=MINE).json()
        assert client.get("/v1/limits", headers=THEIRS).json()["limits"] == []
        assert error_of(client.get("/v1/limits?tenant_id=tenant-2", headers=MINE), 400)["param"] == "tenant_id"
    assert mine["tier"] == "standard"
    assert [(each["kind"], each["scope_id"]) for each in mine["limits"]] == [
        ("tenant", ""),
        ("key", "pubid1"),
        ("model", "tiny"),
    ]
    counters = {(each["kind"], each["name"]): each for each in mine["counters"]}
    requests = counters["tenant", "requests_per_minute"]
    assert (requests["limit"], requests["used"], requests["remaining"]) == (60, 1, 59)
    tokens = counters["key", "tokens_per_day"]
    assert tokens["used"] > 0
    assert {each["held"] for each in counters.values()} == {0}
    assert tokens["used"] + tokens["remaining"] == 1000


@pytest.mark.parametrize("path", ["/v1/usage", "/v1/limits"])
def test_only_a_key_with_the_scope_sees_them(serving, authenticator: FakeAuthenticator, path: str) -> None:
    authenticator.principals[KEY] = replace(authenticator.principals[KEY], scopes=frozenset({KeyScope.CHAT}))
    with serving(AwayAnalytics()) as client:
        assert error_of(client.get(path, headers=MINE), 403)["code"] == "scope_not_allowed"
        error_of(client.get(path), 401)
        error_of(client.post(path, headers=THEIRS), 405)
