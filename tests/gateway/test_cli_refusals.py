"""`turnpike refusals`, in-process, with the embedded stores."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.analytics import migrate, open_analytics
from gateway.config.settings import load_settings
from tests.support.command_line import failure, ok
from tests.support.refusal_samples import TODAY_MS, refusal, store_refusals

pytestmark = pytest.mark.usefixtures("no_settings")
TODAY = datetime.fromtimestamp(TODAY_MS / 1000, UTC)
WINDOW = ("--since", f"{TODAY - timedelta(days=30):%Y-%m-%d}", "--until", f"{TODAY + timedelta(days=30):%Y-%m-%d}")
KEY = "0123456789ab"


@pytest.fixture(autouse=True)
def acme(no_settings: Path) -> None:
    """Two tenants that were refused yesterday, and a request with an unknown key."""
    for name in ("acme", "zeta"):
        ok("tenant", "create", name, "--tier", "standard")
    ids = {each["name"]: each["id"] for each in json.loads(ok("tenant", "list", "--json"))}
    invalid = {"outcome": "refused", "status": 400, "code": "invalid_value", "limit_name": ""}

    async def store() -> None:
        analytics = open_analytics(load_settings().analytics_url.get_secret_value())
        await migrate(analytics)
        await store_refusals(
            analytics,
            [
                refusal(1, TODAY_MS, tenant_id=ids["acme"], key_id=KEY, requests=5),
                refusal(2, TODAY_MS + 1000, tenant_id=ids["acme"], model="small", requests=2, **invalid),
                refusal(3, TODAY_MS + 2000, tenant_id=ids["zeta"], key_id=KEY, requests=7),
                refusal(4, TODAY_MS + 3000, tenant_id="", key_id="", model="", requests=1, **invalid),
            ],
        )
        await analytics.aclose()

    asyncio.run(store())


def requests(*arguments: str) -> list[int]:
    return [each["requests"] for each in json.loads(ok("refusals", *WINDOW, "--json", *arguments))]


def test_the_latest_are_listed_first() -> None:
    assert requests() == [1, 7, 2, 5]
    assert requests("--limit", "2") == [1, 7]
    heading, *lines = ok("refusals", *WINDOW, "--tenant", "zeta").splitlines()
    assert heading.split()[:3] == ["LAST", "AT", "TENANT"]
    assert "zeta" in lines[0]
    assert "tenant.requests_per_minute" in lines[0]
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("only", "found"),
    [
        (("--tenant", "acme"), [2, 5]),
        (("--model", "small"), [2]),
        (("--code", "invalid_value"), [1, 2]),
        (("--key", KEY, "--code", "rate_limit_exceeded"), [7, 5]),
        (("--since", f"{TODAY + timedelta(days=2):%Y-%m-%d}"), []),
    ],
)
def test_they_are_filtered(only: tuple[str, ...], found: list[int]) -> None:
    assert requests(*only) == found


def test_they_are_counted_by_group() -> None:
    counted = json.loads(ok("refusals", *WINDOW, "--by", "tenant", "--by", "code", "--json"))
    assert counted == [
        {"tenant": "zeta", "code": "rate_limit_exceeded", "requests": 7},
        {"tenant": "acme", "code": "rate_limit_exceeded", "requests": 5},
        {"tenant": "acme", "code": "invalid_value", "requests": 2},
        {"tenant": "", "code": "invalid_value", "requests": 1},
    ]
    assert ok("refusals", *WINDOW, "--by", "limit").splitlines()[0].split() == ["LIMIT", "REQUESTS"]


@pytest.mark.parametrize(
    ("code", "arguments", "named"),
    [
        (2, ("--since", "soon"), "--since"),
        (1, ("--since", "2026-02-01", "--until", "2026-01-01"), "start"),
        (2, ("--by", "colour"), "colour"),
        (1, ("--tenant", "nobody"), "nobody"),
    ],
)
def test_what_cannot_be_is_said(code: int, arguments: tuple[str, ...], named: str) -> None:
    assert named in failure(code, "refusals", *arguments)
