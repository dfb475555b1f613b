"""A request's page says all that its usage event says, adds up to its cost, and is hidden from other tenants."""

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from gateway.analytics import AnalyticsAway
from gateway.management.console.login import SESSION_COOKIE
from gateway.management.console.requests import time_line
from tests.console.browser import serving
from tests.console.events import ago_ms, of_tenant, used
from tests.console.house import ACME, GLOBEX, House
from tests.console.html import rows, text


async def test_the_list_has_each_request_once_the_newest_first(console: House) -> None:
    await used(console, *(of_tenant(console, ACME, n, ago_ms(minutes=n)) for n in range(1, 61)))
    seen: list[str] = []
    address = "/requests"
    while address:
        page = await console.page(address, "viewer")
        seen += re.findall(r'href="/console/requests/(req_\d+)\?', page)
        further = re.search(r'href="/console(/requests\?[^"]*cursor=[^"]*)"', page)
        address = further[1].replace("&amp;", "&") if further else ""
    assert seen == [f"req_{n}" for n in range(1, 61)]


async def test_it_is_filtered(console: House) -> None:
    await used(
        console,
        of_tenant(console, ACME, 1, ago_ms(minutes=1)),
        of_tenant(console, ACME, 2, ago_ms(minutes=2), finish_reason="quota", tier="premium"),
        of_tenant(console, GLOBEX, 3, ago_ms(minutes=3), served_model="large", http_status=499),
        of_tenant(console, GLOBEX, 4, ago_ms(hours=3)),
    )
    wanted = {
        "": {1, 2, 3, 4},
        "?window=hour": {1, 2, 3},
        "?finish_reason=quota": {2},
        "?http_status=499": {3},
        "?model=large": {3},
        "?tier=premium": {2},
        f"?tenant_id={console.tenant[GLOBEX].id}": {3, 4},
        "?tenant_id=globex": {3, 4},
        f"?key_id={console.keys[ACME].split('-')[1]}": {1, 2},
        "?request_id=req_2": {2},
        "?request_id=http_3": {3},
        "?request_id=req_2&model=large": set(),
    }
    for query, numbers in wanted.items():
        page = await console.page(f"/requests{query}")
        assert {int(n) for n in re.findall(r">req_(\d+)<", page)} == numbers, query


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("finish_reason=x", "finish_reason"),
        ("http_status=5xx", "http_status"),
        ("window=x", "window"),
        ("tenant_id=acme-2", "tenant_id"),
    ],
)
async def test_a_filter_that_cannot_be_is_named(console: House, query: str, field: str) -> None:
    assert f'id="ask-{field}-note"' in await console.page(f"/requests?{query}", status=400)


async def test_one_request_is_told_in_full(console: House) -> None:
    at_ms = ago_ms(minutes=5)
    price = console.services.prices.price_of("tiny", "standard", datetime.now(UTC))
    told = of_tenant(
        console,
        ACME,
        7,
        at_ms,
        served_model="tiny",
        price_version=price.version,
        cost_nanodollars=price.of(100, 64, 10),
        queue_ms=30,
        ttft_ms=100,
        paused_ms=50,
        preemptions=2,
    )
    # The price has begun with the house: of before there is none.
    late = told | {"occurred_at": datetime.now(UTC) + timedelta(seconds=1), "total_latency_ms": 400}
    await used(console, late)
    page = text(await console.page(f"/requests/req_7?near={late['occurred_at'].isoformat().replace('+', '%2B')}"))
    for expected in (
        "req_7",
        "acme",
        f"{price.of(100, 64, 10) / 1e9:.7f}",
        "queued 30 ms",
        "to the first token 70 ms",
        "answering 250 ms",
        "paused, as its client did not read 50 ms",
        "5 of 8 right (62.5 %)",
        "Preemptions 2",
        "complexity_small",
        "Prompt, computed 36",
        "Prompt, from the prefix cache 64",
        str(late["event_id"]),
        "number 7",
        "HTTP status 200",
    ):
        assert expected in page, expected
    assert "estimated" not in page


async def test_estimated_tokens_are_said(console: House) -> None:
    await used(console, of_tenant(console, ACME, 8, ago_ms(minutes=5), estimated=True))
    assert "estimated: the model's server reported no usage" in text(await console.page("/requests/req_8"))
    table = (await console.page("/requests.csv")).splitlines()
    assert table[1].split(",")[table[0].split(",").index("estimated")] == "yes"


async def test_a_tenant_finds_its_own_requests_alone(console: House) -> None:
    await used(
        console, of_tenant(console, ACME, 1, ago_ms(minutes=1)), of_tenant(console, GLOBEX, 2, ago_ms(minutes=2))
    )
    other = console.tenant[ACME].id
    for query in ("", f"?tenant_id={other}"):
        page = await console.page(f"/requests{query}", GLOBEX)
        assert re.findall(r">req_(\d+)<", page) == ["2"]
    assert "req_2" in await console.page("/requests/req_2", GLOBEX)
    missing = await console.page("/requests/req_1", GLOBEX, status=404)
    assert "acme" not in missing
    for path in (f"/requests/req_1?tenant_id={other}", "/requests/req_9"):
        assert "No usage of this request" in await console.page(path, GLOBEX, status=404)


async def test_names_stand_where_ids_were(console: House) -> None:
    await used(console, of_tenant(console, ACME, 1, ago_ms(minutes=1)))
    page = await console.page("/requests", "viewer")
    (row,) = rows(page, "Requests")
    assert row[1].startswith("acme first …")
    assert row[3:6] == ["chat/completions streamed", "stop", "200"]
    assert console.tenant[ACME].id not in " ".join(row)
    picker = page.split('name="tenant_id"')[1].split("</select>")[0]
    assert [text(each) for each in picker.split("<option")[1:]] == [
        'value="" selected>all',
        *(f'value="{console.tenant[name].id}">{name}' for name in (ACME, GLOBEX)),
    ]
    chosen = await console.page(f"/requests?tenant_id={console.tenant[GLOBEX].id}")
    keys = chosen.split('name="key_id"')[1].split("</select>")[0]
    assert (keys.count("<option"), "acme" in keys) == (2, False)


async def test_a_key_of_another_tenant_is_not_named(console: House) -> None:
    await used(console, of_tenant(console, GLOBEX, 1, ago_ms(minutes=1)))
    other = console.keys[ACME].split("-")[1]
    page = await console.page(f"/requests?key_id={other}", GLOBEX)
    assert console.keys[ACME][-4:] not in page


async def test_the_file_has_every_request_and_runs_no_formula(console: House) -> None:
    await used(console, *(of_tenant(console, ACME, n, ago_ms(minutes=n)) for n in range(1, 452)))
    await used(console, of_tenant(console, GLOBEX, 900, ago_ms(minutes=1), served_model="=1+1", ttft_ms=None))
    answer = await console.get("/requests.csv?window=week")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "requests.csv" in answer.headers["content-disposition"]
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    assert sorted(int(each["request_id"][4:]) for each in lines) == [*range(1, 452), 900]
    (odd,) = (each for each in lines if each["tenant"] == GLOBEX)
    assert (odd["model"], odd["ttft_ms"], odd["streamed"], odd["cost_dollars"]) == ("'=1+1", "", "yes", "0.000001")
    own = await console.page(f"/requests.csv?tenant_id={console.tenant[ACME].id}", GLOBEX)
    assert len(own.splitlines()) == 2
    assert (await console.get("/requests.csv?window=x")).status_code == 400


async def test_a_file_that_breaks_off_does_not_look_whole(console: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await used(console, *(of_tenant(console, ACME, n, ago_ms(minutes=n)) for n in range(1, 300)))
    query, calls = console.services.analytics.query, []

    async def failing(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 1:
            raise AnalyticsAway("away")
        return await query(*arguments)

    monkeypatch.setattr(console.services.analytics, "query", failing)
    cookies = {SESSION_COOKIE: console.token("admin")}
    async with serving(console) as url, httpx.AsyncClient(cookies=cookies) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get(f"{url}/console/requests.csv?window=week")


async def test_an_id_that_cannot_be_is_no_page(console: House) -> None:
    await console.page("/requests/%3Cscript%3E", status=404)


@pytest.mark.parametrize(
    ("times", "parts"),
    [
        ((400, 30, 100, 0), [30, 70, 300, 0]),
        ((400, 30, None, 0), [30, 370]),
        ((400, 500, None, 0), [400, 0]),
        ((400, 30, 10, 0), [30, 0, 370, 0]),
        ((400, 30, 100, 9000), [30, 70, 0, 300]),
        ((0, 0, 0, 0), [0, 0, 0, 0]),
    ],
)
def test_the_parts_of_a_time_line_add_up(times: tuple[int, int, int | None, int], parts: list[int]) -> None:
    total_ms, queue_ms, ttft_ms, paused_ms = times
    request = {"total_latency_ms": total_ms, "queue_ms": queue_ms, "ttft_ms": ttft_ms, "paused_ms": paused_ms}
    chart = time_line(request)
    shown = [0 if each.total == "0 ms" else int(each.total.removesuffix(" ms")) for each in chart.legend]
    assert shown == parts
    assert sum(shown) == total_ms
