"""The first page says what the engine and the store of usage say, and to a tenant nothing of the others."""

import re

import pytest

from gateway.analytics import AnalyticsAway
from tests.console.events import ago_ms, of_tenant, used
from tests.console.furnished import busy
from tests.console.house import ACME, GLOBEX, House


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
    page = text_of(await console.page("", "viewer"))
    assert "Requests 2 Prompt tokens 1,001,234" in page
    assert "Cost $2.000000007" in page
    assert "globex 1 1,000,000 10 $2.00 acme 1 1,234 10 $0.000000007" in page
    assert "large 1 1,000,000 10 $2.00 small 1 1,234 10 $0.000000007" in page
    assert text_of(await console.page("/overview/today", "viewer")) in page


async def test_a_tenant_sees_its_own_day_and_nothing_of_who_else_is_there(console: House) -> None:
    await some_usage(console)
    console.engine.said = {"tiny": busy(7, 3)}
    page = text_of(await console.page("", ACME))
    assert "Requests 1 Prompt tokens 1,234" in page
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
    assert "The store of usage does not answer" in page
    assert "Engine" in page
