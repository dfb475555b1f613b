"""The usage pages equal the store, to the last token and nanodollar, and a tenant sees its own usage alone."""

import csv
import io

import pytest

from gateway.analytics.sums import SUM_COLUMNS
from gateway.management.console.usage_figures import MAX_SERIES, OTHERS, figures_of
from tests.console.events import ago_ms, of_tenant, used
from tests.console.house import ACME, GLOBEX, House
from tests.console.html import rows, stat


async def two_tenants(house: House) -> None:
    many = dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens", "cost_nanodollars"), 2**50 + 1)
    await used(
        house,
        of_tenant(house, ACME, 1, ago_ms(hours=1), **many),
        of_tenant(house, ACME, 2, ago_ms(hours=3), served_model="large", tier="premium"),
        of_tenant(house, GLOBEX, 3, ago_ms(hours=3)),
        of_tenant(house, GLOBEX, 4, ago_ms(days=3)),
    )


async def test_sums_are_exact(console: House) -> None:
    await two_tenants(console)
    page = await console.page("/usage", "viewer")
    assert stat(page, "Requests") == "3"
    assert stat(page, "Prompt tokens").split()[0] == f"{2**50 + 201:,}"
    assert stat(page, "Cost") == "$1125899.906844625"
    week = await console.page("/usage?window=week&by=tenant")
    assert [row[:2] for row in rows(week, "By tenant")] == [["acme ⧉", "2"], ["globex ⧉", "2"]]
    assert rows(week, "By tenant")[1][-1] == "$0.000002"


@pytest.mark.parametrize(
    ("by", "named"), [("tenant", {"acme", "globex"}), ("model", {"small", "large"}), ("tier", {"standard", "premium"})]
)
async def test_usage_is_told_apart(console: House, by: str, named: set[str]) -> None:
    await two_tenants(console)
    page = await console.page(f"/usage?by={by}")
    heading = "class" if by == "tier" else by
    assert {row[0].split()[0] for row in rows(page, f"By {heading}")} == named
    for name in named:
        assert f"{name}: " in page, "in the charts, too"


async def test_keys_have_names_and_latencies_percentiles(console: House) -> None:
    await used(
        console,
        *(of_tenant(console, ACME, n, ago_ms(minutes=5), ttft_ms=100, total_latency_ms=1000) for n in range(1, 11)),
        of_tenant(console, GLOBEX, 11, ago_ms(minutes=5), ttft_ms=9000, total_latency_ms=20_000),
    )
    page = await console.page("/usage?by=key")
    acme, globex = sorted(rows(page, "By key"), key=lambda row: row[1])[::-1], rows(page, "By key")
    assert all(row[0].startswith("first …") for row in globex)
    (slow,) = (row for row in globex if row[1] == "1")
    (quick,) = (row for row in acme if row[1] == "10")
    assert quick[6:8] == ["100 ms", "100 ms"]
    assert [each.split()[1] for each in slow[6:10]] == ["s"] * 4
    assert stat(page, "TTFT, p50") == "100 ms p95 100 ms"
    assert "Time to the first token" in page
    year = await console.page("/usage?window=year&by=key")
    assert "at most 92 days" in year
    file = await console.page("/usage.csv?by=tenant")
    assert {line["name"] for line in csv.DictReader(io.StringIO(file))} == {ACME, GLOBEX}


async def test_filters_narrow_it(console: House) -> None:
    await two_tenants(console)
    assert stat(await console.page("/usage?model=large"), "Requests") == "1"
    assert stat(await console.page(f"/usage?tenant_id={console.tenant[GLOBEX].id}"), "Requests") == "1"
    assert stat(await console.page("/usage?tier=premium&model=small"), "Requests") == "0"


async def test_a_tenant_sees_its_own_whatever_it_asks(console: House) -> None:
    await two_tenants(console)
    other = console.tenant[ACME].id
    for query in ("", f"?tenant_id={other}", f"?tenant_id={other}&by=key", "?by=tenant"):
        page = await console.page(f"/usage{query}", GLOBEX)
        assert stat(page, "Requests") == "1"
        assert ACME not in page.replace(query.partition("?")[2], "")
    file = await console.page(f"/usage.csv?tenant_id={other}", GLOBEX)
    assert len(file.splitlines()) == 2


async def test_the_file_has_every_point(console: House) -> None:
    await two_tenants(console)
    answer = await console.get("/usage.csv?window=week&by=tenant,model")
    assert answer.status_code == 400
    answer = await console.get("/usage.csv?window=week&by=tenant")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "usage.csv" in answer.headers["content-disposition"]
    points = list(csv.DictReader(io.StringIO(answer.text)))
    assert sum(int(point["events"]) for point in points) == 4
    assert sum(int(point["prompt_tokens"]) for point in points) == 2**50 + 301
    assert {point["tenant"] for point in points} == {console.tenant[ACME].id, console.tenant[GLOBEX].id}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("window=century", "window"),
        ("by=colour", "by"),
        ("tenant_id=x", "tenant_id"),
        ("start=2020-01-01T00:00&end=2026-01-01T00:00", "start"),
        ("window=month&bucket=minute", "bucket"),
        ("end=yesterday", "end"),
    ],
)
async def test_what_cannot_be_shown_is_said_beside_its_field(console: House, query: str, field: str) -> None:
    page = await console.page(f"/usage?{query}", status=400)
    assert f'id="ask-{field}-note"' in page
    assert 'role="alert"' in page


async def test_no_more_bars_than_can_be_told_apart(console: House) -> None:
    page = await console.page("/usage?window=week&bucket=minute", status=400)
    assert 'id="ask-bucket-note"' in page


def test_whoever_has_no_series_of_its_own_is_among_the_others() -> None:
    names = [f"m{n}" for n in range(MAX_SERIES + 3)]
    amounts = dict.fromkeys(SUM_COLUMNS, 0)
    start = "2026-03-01T00:00:00.000000Z"
    points = [
        amounts | {"start": start, "model": name, "events": 1, "cost_nanodollars": 10**n}
        for n, name in enumerate(names)
    ]
    answer = {"start": start, "end": "2026-03-02T00:00:00.000000Z", "bucket": "day", "data": points}
    figures = figures_of(answer, "model", {})
    assert [group.name for group in figures.groups] == names[::-1]
    _, requests, cost = figures.charts
    assert [(each.name, each.total) for each in requests.legend][-1] == (OTHERS, "3")
    assert cost.legend[-1].total == "$0.000000111"
