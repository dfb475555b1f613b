"""Refusals as an operator reads them, and as a tenant reads its own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from gateway.analytics import Analytics, migrate, open_analytics
from gateway.app import create_app
from gateway.common.timestamps import utc_from_ms
from gateway.config.settings import Settings
from gateway.management.operations.roles import Role
from gateway.management.operations.timestamps import instant
from tests.gateway.admin.harness import UNKNOWN_TENANT, Admin
from tests.support.error_envelope import error_of
from tests.support.fake_engine import FakeEngine
from tests.support.gateway import KEY, PREMIUM_KEY, FakeAuthenticator
from tests.support.refusal_samples import TODAY, TODAY_MS, refusal, store_refusals
from tests.support.services import services_with
from tests.support.usage_samples import HOUR_MS

ACME = "11111111-1111-1111-1111-111111111111"
ZETA = "22222222-2222-2222-2222-222222222222"
WINDOW = {"start": instant(utc_from_ms(TODAY.start_ms)), "end": instant(utc_from_ms(TODAY.end_ms))}
JANUARY = {"start": "2026-01-01T00:00:00Z", "end": "2026-02-01T00:00:00Z"}
MINE = {"authorization": f"Bearer {KEY}"}
INVALID = {"outcome": "refused", "status": 400, "code": "invalid_value", "limit_name": ""}
ROWS = [
    refusal(1, tenant_id=ACME, key_id="acmekey00001", requests=5),
    refusal(2, TODAY_MS + HOUR_MS, tenant_id=ACME, key_id="acmekey00002", model="small", requests=2, **INVALID),
    refusal(3, TODAY_MS + 2 * HOUR_MS, tenant_id=ZETA, requests=1),
    refusal(4, TODAY_MS + 3 * HOUR_MS, tenant_id="", key_id="", tier="", model="", requests=9, **INVALID),
]


@pytest.fixture
async def analytics(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Analytics]:
    analytics = open_analytics(f"chdb://{tmp_path / 'analytics'}")
    await migrate(analytics)
    await store_refusals(analytics, ROWS)
    yield analytics
    await analytics.aclose()


async def test_refusals_are_listed_newest_first_page_by_page(admin: Admin) -> None:
    page = await admin.get("/refusals", "viewer", params={**WINDOW, "limit": 3})
    assert [each["requests"] for each in page["data"]] == [9, 1, 2]
    rest = await admin.get("/refusals", "viewer", params={**WINDOW, "limit": 3, "cursor": page["next_cursor"]})
    assert rest["next_cursor"] is None
    [first] = rest["data"]
    assert first == {
        "refusal_id": str(ROWS[0].refusal_id),
        "occurred_at": instant(ROWS[0].occurred_at),
        "requests": 5,
        "tenant_id": ACME,
        "key_id": "acmekey00001",
        "tier": "standard",
        "model": "large",
        "endpoint": "/v1/chat/completions",
        "outcome": "turned_away",
        "status": 429,
        "code": "rate_limit_exceeded",
        "limit_name": "tenant.requests_per_minute",
        "request_id": "req_1",
        "source": "a",
    }
    error = await admin.refused(
        400, "GET", "/refusals", params={**WINDOW, "limit": 3, "cursor": page["next_cursor"], "tenant_id": ACME}
    )
    assert error["param"] == "cursor"


@pytest.mark.parametrize(
    ("only", "requests"),
    [
        ({"tenant_id": ACME}, [2, 5]),
        ({"tenant_id": UNKNOWN_TENANT}, []),
        ({"key_id": "acmekey00001"}, [5]),
        ({"model": "small"}, [2]),
        ({"code": "invalid_value"}, [9, 2]),
        ({"outcome": "turned_away"}, [1, 5]),
        ({"limit_name": "tenant.requests_per_minute", "tenant_id": ZETA}, [1]),
        ({"endpoint": "/v1/completions"}, []),
    ],
)
async def test_refusals_are_filtered(admin: Admin, only: dict, requests: list[int]) -> None:
    page = await admin.get("/refusals", params={**WINDOW, **only})
    assert [each["requests"] for each in page["data"]] == requests
    summary = await admin.get("/refusals/summary", params={**WINDOW, **only, "bucket": "day"})
    assert sum(each["requests"] for each in summary["data"]) == sum(requests)


async def test_refusals_are_counted_by_time_and_group(admin: Admin) -> None:
    summary = await admin.get("/refusals/summary", params={**WINDOW, "by": "tenant,code", "bucket": "hour"})
    assert summary["bucket"] == "hour"
    assert [(each["start"], each["tenant"], each["code"], each["requests"]) for each in summary["data"]] == [
        (instant(utc_from_ms(TODAY_MS)), ACME, "rate_limit_exceeded", 5),
        (instant(utc_from_ms(TODAY_MS + HOUR_MS)), ACME, "invalid_value", 2),
        (instant(utc_from_ms(TODAY_MS + 2 * HOUR_MS)), ZETA, "rate_limit_exceeded", 1),
        (instant(utc_from_ms(TODAY_MS + 3 * HOUR_MS)), "", "invalid_value", 9),
    ]
    assert {each["model"] for each in summary["data"]} == {None}, "it is not grouped by model"


@pytest.mark.parametrize(
    ("path", "query", "param"),
    [
        ("/refusals", {"outcome": "answered"}, "outcome"),
        ("/refusals", {"limit": "1000"}, "limit"),
        ("/refusals", {"tenant_id": "acme"}, "tenant_id"),
        ("/refusals", {"start": WINDOW["end"], "end": WINDOW["start"]}, "start"),
        ("/refusals/summary", {"by": "status"}, "by[0]"),
        ("/refusals/summary", {"bucket": "minute", **JANUARY}, "bucket"),
    ],
)
async def test_a_wrong_query_is_told(admin: Admin, path: str, query: dict, param: str) -> None:
    assert (await admin.refused(400, "GET", path, params=query))["param"] == param


@pytest.mark.parametrize("role", list(Role))
async def test_every_role_reads_refusals(admin: Admin, role: Role) -> None:
    assert len((await admin.get("/refusals", role, params=WINDOW))["data"]) == 4


class TestOwnRefusals:
    @pytest.fixture
    def client(self, tmp_path: Path) -> Iterator[TestClient]:
        store = open_analytics(f"chdb://{tmp_path / 'own'}")

        async def furnish() -> None:
            await migrate(store)
            await store_refusals(
                store,
                [
                    refusal(1, tenant_id="tenant-1", requests=5),
                    refusal(2, tenant_id="tenant-2", requests=70),
                    refusal(3, tenant_id="", requests=900),
                ],
            )

        app = create_app(
            Settings(data_dir=tmp_path), services_with(tmp_path, FakeEngine(), FakeAuthenticator(), analytics=store)
        )
        with TestClient(app) as client:
            client.portal.call(furnish)
            yield client

    def test_a_tenant_reads_its_own_and_no_others(self, client: TestClient) -> None:
        answer = client.get("/v1/refusals", params={**WINDOW, "by": "code,limit"}, headers=MINE)
        [point] = answer.json()["data"]
        assert (point["requests"], point["code"], point["limit"]) == (
            5,
            "rate_limit_exceeded",
            "tenant.requests_per_minute",
        )
        assert "tenant" not in point
        theirs = client.get("/v1/refusals", params=WINDOW, headers={"authorization": f"Bearer {PREMIUM_KEY}"})
        assert [each["requests"] for each in theirs.json()["data"]] == [70]

    @pytest.mark.parametrize("query", [{"tenant_id": ZETA}, {"by": "tenant"}])
    def test_it_cannot_ask_for_another(self, client: TestClient, query: dict) -> None:
        answer = client.get("/v1/refusals", params={**WINDOW, **query}, headers=MINE)
        assert error_of(answer, 400)["param"] in ("tenant_id", "by[0]")

    def test_it_is_for_keys_that_may_read_usage(self, client: TestClient) -> None:
        assert client.get("/v1/refusals").status_code == 401
