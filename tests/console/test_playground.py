"""The playground is a client like any other: it streams, it stops, it is limited, and it is billed once."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from playwright.async_api import Page, expect

from gateway.metering.event import Ending, UsageEvent
from tests.console.browser import Browsing
from tests.console.house import ACME, House
from tests.support.usage_events import events_of

PASSAGE = "/console/playground/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def billed(house: House) -> list[UsageEvent]:
    return events_of(house.services.journal)


async def speak(house: House, who: str, **headers: str) -> int:
    response = await house.http.post(PASSAGE, json=BODY, headers={**house._cookie(who), **headers})
    return response.status_code


async def test_the_page_offers_what_the_key_may_use(console: House) -> None:
    page = await console.page("/playground", ACME)
    assert "<option>tiny</option>" in page
    assert "<option>org/tiny-2</option>" in page
    assert 'data-target="/console/playground/completions"' in page
    assert 'id="key"' not in page
    admins = await console.page("/playground", "viewer")
    assert 'data-target="/v1/chat/completions"' in admins
    assert 'id="key" type="password"' in admins


async def test_only_the_page_itself_speaks_as_the_tenant(console: House) -> None:
    assert await speak(console, ACME) == 403
    assert await speak(console, ACME, **{"x-csrf-token": console.csrf("globex")}) == 403
    assert await speak(console, ACME, **{"x-csrf-token": console.csrf(ACME), "origin": "http://elsewhere"}) == 403
    assert await speak(console, "") == 401
    assert await speak(console, "admin", **{"x-csrf-token": console.csrf("admin")}) == 403
    assert billed(console) == []
    assert await speak(console, ACME, **{"x-csrf-token": console.csrf(ACME)}) == 200
    (event,) = billed(console)
    assert (event.tenant_id, event.key_id) == (console.tenant[ACME].id, console.keys[ACME].split("-")[1])


async def ask(page: Page, question: str) -> None:
    await page.get_by_label("Question").fill(question)
    await page.get_by_label("Question").press("Control+Enter")


async def test_a_tenant_talks_by_keyboard_and_is_billed_once_for_each_answer(browsing: Browsing) -> None:
    house = browsing.house
    page = await browsing.page(ACME)
    await page.goto("/console/playground")
    await page.get_by_label("System prompt").fill("Be brief.")
    await page.get_by_label("Maximum tokens").fill("50")
    await ask(page, "hi")
    answer = page.locator(".turn").nth(1)
    await expect(answer.locator(".answer")).to_have_text("Hello, world!")
    await expect(answer.locator(".facts")).to_contain_text("Because")
    (event,) = billed(house)
    facts = await answer.locator(".facts").inner_text()
    assert f"{event.prompt_tokens} tokens, {event.cached_tokens} cached" in facts
    assert f"{event.completion_tokens} tokens" in facts
    assert f"${event.cost_nanodollars / 1e9:.9f}".rstrip("0") in facts
    assert event.request_id in facts
    assert "standard" in facts
    assert house.engine.calls[0].params.max_tokens == 50

    house.engine.reply = "Again."
    await ask(page, "and now?")
    await expect(page.locator(".answer").nth(3)).to_have_text("Again.")
    await expect(page.locator(".turn").nth(3).locator(".facts")).to_contain_text("Request")
    prompt = bytes(house.engine.calls[1].prompt[1:]).decode()
    assert prompt == "<system>Be brief.\n<user>hi\n<assistant>Hello, world!\n<user>and now?\n<assistant>"
    await until(lambda: len(billed(house)) == 2)  # the last of the text is seen before the last byte is sent

    await until(lambda: house.services.journal.backlog_events == 0)
    await answer.locator(".facts a").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Request")
    await expect(page.locator("main")).to_contain_text(event.request_id)


async def test_what_is_stopped_is_cancelled_and_billed_for_what_was_seen(browsing: Browsing) -> None:
    engine = browsing.house.engine
    engine.reply, engine.pace_s = "x" * 250, 0.02
    page = await browsing.page(ACME)
    await page.goto("/console/playground")
    await ask(page, "hi")
    answer = page.locator(".turn").nth(1)
    await expect(answer.locator(".answer")).to_contain_text("xxx")
    await page.get_by_role("button", name="Stop").click()
    await expect(answer).to_contain_text("stopped by you")
    await until(lambda: not engine.live and len(billed(browsing.house)) == 1)
    (event,) = billed(browsing.house)
    assert event.finish_reason is Ending.CANCELLED
    assert 0 < event.completion_tokens < 250
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()


async def test_errors_say_what_the_api_says(browsing: Browsing) -> None:
    house = browsing.house
    house.engine.fail_at = 3
    page = await browsing.page(ACME)
    await page.goto("/console/playground")
    await ask(page, "hi")
    alert = page.locator(".turn").nth(1).get_by_role("alert")
    await expect(alert).to_be_visible()
    broken = await alert.inner_text()
    assert "NaN" not in broken, "what goes on inside is no client's"
    await page.get_by_label("Maximum tokens").fill("100000")
    await ask(page, "more")
    await expect(page.locator(".turn").nth(3).get_by_role("alert")).to_contain_text("tokens")
    browsing.complaints[:] = [each for each in browsing.complaints if "400" not in each]


async def test_an_administrator_speaks_with_a_tenants_key(browsing: Browsing) -> None:
    house = browsing.house
    page = await browsing.page("viewer")
    await page.goto("/console/playground")
    await ask(page, "hi")
    assert await page.locator(".turn").count() == 0, "without a key there is nobody to pay"
    key = page.get_by_label("A tenant's API key")
    await key.fill(house.keys[ACME])
    await page.get_by_label("Question").press("Control+Enter")
    await expect(page.locator(".answer").nth(1)).to_have_text("Hello, world!")
    await until(lambda: len(billed(house)) > 0)
    (event,) = billed(house)
    assert event.tenant_id == house.tenant[ACME].id
    kept = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
    assert house.keys[ACME].rpartition("-")[2] not in await page.evaluate(kept)
    await key.fill(house.keys[ACME][:-1])
    await ask(page, "again")
    await expect(page.locator(".turn").nth(3).get_by_role("alert")).to_contain_text("key")
    browsing.complaints[:] = [each for each in browsing.complaints if "401" not in each]


async def test_a_key_for_other_things_has_no_playground(console: House) -> None:
    made = await console.http.post(
        f"/admin/v1/tenants/{console.tenant[ACME].id}/keys",
        json={"name": "numbers", "scopes": ["usage"]},
        headers={"authorization": f"Bearer {console.keys['admin']}"},
    )
    console = replace(console, keys={**console.keys, "numbers": made.json()["key"]})
    assert (await console.get("/playground", "numbers")).status_code == 403
    assert "/console/playground" not in await console.page("/usage", "numbers")
    assert await speak(console, "numbers", **{"x-csrf-token": console.csrf("numbers")}) == 403
    assert billed(console) == []
