"""The first page says what the engine and the store of usage say, and to a tenant nothing of the others."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.analytics import AnalyticsAway
from tests.console.events import ago_ms, of_tenant, used
from tests.console.furnished import busy
from tests.console.house import ACME, GLOBEX, House, open_house
from tests.console.html import stat
from tests.support.refusal_samples import refusal, store_refusals


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


async def some_usage(console: House) -> None:
    """Two requests of just now, and one of three days ago."""
    now_ms = ago_ms()
    await used(
        console,
        of_tenant(console, ACME, 1, now_ms, prompt_tokens=1234, cost_nanodollars=7),
        of_tenant(console, GLOBEX, 2, now_ms, prompt_tokens=10**6, cost_nanodollars=2 * 10**9, served_model="large"),
        of_tenant(console, GLOBEX, 3, ago_ms(days=3), prompt_tokens=5),
    )


async def test_today_is_summed_exactly_and_told_apart(console: House) -> None:
    await some_usage(console)
    html = await console.page("", "viewer")
    page = text_of(html)
    assert "Requests 2 yesterday until now 0 Prompt tokens 1,001,234" in page
    assert "Spend $2.000000007 yesterday until now $0.000000" in page
    assert "globex 1 1,000,000 10 $2.000000 acme 1 1,234 10 &lt;$0.000001" in page
    assert 'title="$0.000000007"' in html
    assert "large 1 1,000,000 10 $2.000000 small 1 1,234 10 &lt;$0.000001" in page


async def test_the_part_that_is_read_again_is_the_part_of_the_page(tmp_path: Path, sqlite_schema: Path) -> None:
    """At one moment: the rate of the hour in progress falls with every second of it."""
    opened = datetime.now(UTC)
    async with open_house(tmp_path, sqlite_schema, now=lambda: opened) as console:
        await some_usage(console)
        page = text_of(await console.page("", "viewer"))
        assert "Requests 2 yesterday until now 0" in page
        assert text_of(await console.page("/overview/today", "viewer")) in page


async def test_a_tenant_sees_its_own_day_and_nothing_of_who_else_is_there(console: House) -> None:
    await some_usage(console)
    console.engine.said = {"tiny": busy(7, 3)}
    page = text_of(await console.page("", ACME))
    assert "Requests 1 yesterday until now 0 Prompt tokens 1,234" in page
    for other in ("globex", "Running", "Waiting", "large", "Preempted", "KV memory"):
        assert other not in page
    assert "Running" not in await console.page("/overview/now", ACME)


async def test_now_is_what_the_engine_says(console: House) -> None:
    console.engine.said = {"tiny": busy(7, 3), "org/tiny-2": busy(0, 0)}
    page = text_of(await console.page("/overview/now", "billing"))
    assert "Engine ready Running 7 Waiting 3" in page
    held = sum(each.held_blocks for each in busy(7, 3).classes)
    assert f"tiny 7 3 1.26 s 1 17 {100 * held / 512:.1f} %" in page
    assert "org/tiny-2 0 0 0 ms 1 17 0.0 %" in page


async def test_the_page_is_there_without_the_store_of_usage(console: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise AnalyticsAway("away")

    monkeypatch.setattr(console.services.analytics, "query", away)
    page = await console.page("")
    assert "The usage store does not answer" in page
    assert "Engine" in page


def legend(page: str, title: str) -> str:
    """The legend of a chart."""
    return text_of(page.split(f"<figcaption>{title} ")[1].split('<ul class="legend">')[1].split("</ul>")[0])


async def test_a_day_of_requests_is_told_by_how_they_ended(console: House) -> None:
    await used(
        console,
        of_tenant(console, ACME, 1, ago_ms(minutes=1), ttft_ms=100),
        of_tenant(console, ACME, 2, ago_ms(hours=3), finish_reason="error"),
        of_tenant(console, GLOBEX, 3, ago_ms(hours=5), finish_reason="cancelled"),
        of_tenant(console, GLOBEX, 4, ago_ms(hours=30)),
    )
    mine = {"tenant_id": console.tenant[GLOBEX].id}
    await store_refusals(console.services.analytics, [refusal(1, ago_ms(hours=2), requests=6, **mine)])
    page = await console.page("", "viewer")
    assert legend(page, "Requests") == "served 1 refused 6 failed 1 client gone 1"
    assert (stat(page, "All requests"), stat(page, "Refused"), stat(page, "Failed")) == ("9", "66.7 %", "11.1 %")
    assert legend(page, "Time to the first token, by class") == "standard p50 standard p95"
    assert legend(page, "Output tokens/s") == "small"
    assert stat(page, "TTFT, p50").startswith("40 ms")
    own = await console.page("", ACME)
    assert legend(own, "Requests") == "served 1 refused 0 failed 1 client gone 0"


async def test_spend_stands_beside_yesterdays_until_the_same_time(console: House) -> None:
    await used(
        console,
        of_tenant(console, ACME, 1, ago_ms(), cost_nanodollars=2_000_000),
        of_tenant(console, ACME, 2, ago_ms(days=1, minutes=2), cost_nanodollars=5_000_000),
        of_tenant(console, ACME, 3, ago_ms(days=1) + 120_000, cost_nanodollars=9_000_000),
    )
    assert stat(await console.page(""), "Spend") == "$0.002 yesterday until now $0.005000"


async def test_an_empty_installation_says_what_comes_first(console: House) -> None:
    page = await console.page("")
    assert "/v1/chat/completions" in page
    assert '"model": "org/tiny-2"' in page.replace("&#34;", '"')
    assert "http://localhost/v1/" in page
    assert "<del>Create a tenant</del>" in page
    await used(console, of_tenant(console, ACME, 1, ago_ms()))
    assert "/v1/chat/completions" not in await console.page("")
