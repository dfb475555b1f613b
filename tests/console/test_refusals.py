"""The refusals page has what was refused, filtered as asked; a tenant has its own and no other's."""

import re

import pytest

from gateway.common.timestamps import utc_from_ms
from gateway.management.console.refusal_figures import Reason, figures_of
from gateway.management.operations.timestamps import instant
from tests.console.events import ago_ms
from tests.console.house import ACME, GLOBEX, House
from tests.support.refusal_samples import refusal, store_refusals

NO_MODEL = {"outcome": "refused", "status": 404, "code": "model_not_found", "limit_name": "", "model": "gone"}
FAULT = {"outcome": "failed", "status": 503, "code": "service_unavailable", "limit_name": ""}
AT_MS = 1_773_489_600_000
HOUR, END = (instant(utc_from_ms(AT_MS + hours * 3_600_000)) for hours in (0, 2))


async def refused(console: House) -> None:
    acme, globex = (console.tenant[name].id for name in (ACME, GLOBEX))
    await store_refusals(
        console.services.analytics,
        [
            refusal(1, ago_ms(minutes=1), tenant_id=acme, key_id=console.keys[ACME].split("-")[1], requests=5),
            refusal(2, ago_ms(minutes=2), tenant_id=acme, requests=2, **NO_MODEL),
            refusal(3, ago_ms(minutes=3), tenant_id=globex, requests=70),
            refusal(4, ago_ms(hours=3), tenant_id="", key_id="", requests=900, **NO_MODEL),
            refusal(5, ago_ms(hours=4), tenant_id=acme, requests=33, **FAULT),
        ],
    )


def listed(page: str) -> set[int]:
    return {int(number) for number in re.findall(r">req_(\d+)<", page)}


async def test_refusals_are_filtered(console: House) -> None:
    await refused(console)
    wanted = {
        "": {1, 2, 3, 4, 5},
        "?window=hour": {1, 2, 3},
        f"?tenant_id={console.tenant[GLOBEX].id}": {3},
        f"?key_id={console.keys[ACME].split('-')[1]}": {1},
        "?model=gone": {2, 4},
        "?code=rate_limit_exceeded": {1, 3},
        "?limit_name=tenant.requests_per_minute&outcome=turned_away": {1, 3},
        "?outcome=failed": {5},
    }
    for query, numbers in wanted.items():
        assert listed(await console.page(f"/refusals{query}", "viewer")) == numbers, query


@pytest.mark.parametrize(
    ("start", "end"), [("2026-01-01T00:00", "2026-01-01T02:00"), ("2025-12-01T00:00", "2026-12-01T00:00")]
)
async def test_a_chart_has_room_for_any_window(console: House, start: str, end: str) -> None:
    assert 'role="alert"' not in await console.page(f"/refusals?window=hour&start={start}&end={end}")


async def test_a_limits_refusal_leads_to_the_limits_of_the_tenant(console: House) -> None:
    await refused(console)
    page = await console.page("/refusals")
    link = re.search(r'href="/console(/tenants/[^"]*/limits[^"]*)">tenant.requests_per_minute<', page)
    assert console.tenant[ACME].id in link[1]
    assert (await console.get(link[1].replace("&amp;", "&"))).status_code == 200
    assert "unknown key" in page


async def test_a_tenant_sees_its_own(console: House) -> None:
    await refused(console)
    for query in ("", f"?tenant_id={console.tenant[GLOBEX].id}"):
        page = await console.page(f"/refusals{query}", ACME)
        assert listed(page) == {1, 2, 5}
        assert "70" not in re.findall(r'class="number">(\d+)<', page)
    assert 'href="/console/limits"' in page


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("window=x", "window"),
        ("outcome=answered", "outcome"),
        ("start=2026-01-05T00:00&end=2026-01-01T00:00", "start"),
    ],
)
async def test_a_filter_that_cannot_be_is_named(console: House, query: str, field: str) -> None:
    assert f'id="ask-{field}-note"' in await console.page(f"/refusals?{query}", status=400)


async def test_the_page_of_a_tenant_says_why_it_was_refused(console: House) -> None:
    await refused(console)
    page = await console.page(f"/tenants/{console.tenant[ACME].id}", "viewer")
    assert re.search(r"rate_limit_exceeded</td><td>tenant.requests_per_minute</td><td class=\"number\">5<", page)
    assert "/console/refusals?tenant_id=" in page
    assert "service_unavailable" not in page, "a failure is no refusal"
    assert "70" not in re.findall(r'class="number">(\d+)<', page)


def test_figures_add_up_and_rare_codes_share_a_series() -> None:
    points = [
        {
            "start": HOUR,
            "code": f"code_{number}",
            "limit": "tenant.x" if number % 2 else "",
            "outcome": "failed" if number == 3 else "refused",
            "requests": 20 - number,
        }
        for number in range(12)
    ]
    answer = {"start": HOUR, "end": END, "bucket": "hour", "data": points}
    figures = figures_of(answer)
    assert (figures.refused + figures.failed, figures.failed) == (sum(each["requests"] for each in points), 17)
    assert figures.reasons[0] == Reason("code_0", "", 20)
    assert [each.name for each in figures.chart.legend] == [*(f"code_{n}" for n in range(7)), "others"]
    assert figures.chart.rows[0][-1] == str(sum(20 - number for number in range(7, 12)))
