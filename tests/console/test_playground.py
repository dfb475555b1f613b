"""The playground is a client like any other: it streams, it stops, it is limited, and it is billed once."""

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
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
    assert ">tiny</option>" in page
    assert ">org/tiny-2</option>" in page
    assert 'data-target="/console/playground/completions"' in page
    assert 'type="password"' not in page
    admins = await console.page("/playground", "admin")
    assert f'<option value="{console.tenant[ACME].id}">{ACME}</option>' in admins


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
    await page.get_by_text("Parameters").click()
    await page.get_by_label("Maximum tokens").fill("50")
    await ask(page, "hi")
    answer = page.locator(".turn").nth(1)
    await expect(answer.locator(".answer")).to_have_text("Hello, world!")
    await expect(answer.locator(".facts")).to_contain_text("Because")
    await until(lambda: len(billed(house)) == 1)  # the last of the text is seen before the last byte is sent
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
    await until(lambda: len(billed(house)) == 2)

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
    assert "NaN" not in broken, "internal details are not shown to clients"
    await page.get_by_text("Parameters").click()
    await page.get_by_label("Maximum tokens").fill("100000")
    await ask(page, "more")
    await expect(page.locator(".turn").nth(3).get_by_role("alert")).to_contain_text("tokens")
    browsing.complaints[:] = [each for each in browsing.complaints if "400" not in each]


async def started(house: House, who: str = "admin", tenant: str = ACME) -> str:
    """The page of an administrator who has chosen a tenant."""
    answer = await house.post("/playground", "start", who, tenant_id=house.tenant[tenant].id)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"].removeprefix("/console")


def grant_of(path: str) -> str:
    return path.partition("grant=")[2]


async def test_an_administrator_speaks_as_a_chosen_tenant(browsing: Browsing) -> None:
    house = browsing.house
    page = await browsing.page("admin")
    await page.goto("/console/playground")
    await page.get_by_label("Tenant").select_option(label=ACME)
    await page.get_by_role("button", name="Start").click()
    await ask(page, "hi")
    await expect(page.locator(".answer").nth(1)).to_have_text("Hello, world!")
    await until(lambda: len(billed(house)) > 0)
    (event,) = billed(house)
    assert event.tenant_id == house.tenant[ACME].id
    key = await house.admin.operations.read(
        "readKey", await house.admin.authenticate(house.keys["viewer"]), {"key_id": event.key_id}
    )
    assert (key["name"], key["scopes"], key["expires_at"] is not None) == ("playground of the admin", ["chat"], True)
    audit = await house.page("/audit?action=create&resource=key")
    assert f'<span class="reference" title="{event.key_id}"><a href="/console/keys/{event.key_id}">' in audit
    assert "playground of the admin" in audit
    await page.get_by_role("button", name="End, and revoke the key").click()
    await expect(page.get_by_role("button", name="Start")).to_be_visible()
    assert ">revoked<" in await house.page(f"/keys/{event.key_id}")


async def test_a_grant_is_for_its_session_and_an_admin_alone(console: House) -> None:
    grant = grant_of(await started(console))
    mine = {"x-csrf-token": console.csrf("admin")}
    assert await speak(console, "admin", **mine) == 403
    forged = "a" * 12 + grant[12:]
    for other in ("", "x", forged, grant + "0", console.keys[ACME].split("-")[1] + grant[12:]):
        assert await speak(console, "admin", **mine, **{"x-key-grant": other}) == 403
    for who in ("viewer", "billing"):
        assert await speak(console, who, **{"x-csrf-token": console.csrf(who), "x-key-grant": grant}) == 403
    assert await speak(console, "admin", **{"x-key-grant": grant}) == 403  # without the page's token
    assert billed(console) == []
    assert await speak(console, "admin", **mine, **{"x-key-grant": grant}) == 200
    (event,) = billed(console)
    assert event.tenant_id == console.tenant[ACME].id


async def test_only_an_admin_may_spend_a_tenants_money(console: House) -> None:
    for who in ("viewer", "billing"):
        assert (await console.get("/playground", who)).status_code == 403
        answer = await console.post("/playground", "start", who, tenant_id=console.tenant[ACME].id)
        assert answer.status_code == 403


async def test_the_chosen_tenants_limits_and_suspension_hold(console: House) -> None:
    grant = grant_of(await started(console))
    headers = {"x-csrf-token": console.csrf("admin"), "x-key-grant": grant}
    administrator = await console.admin.authenticate(console.keys["admin"])
    tenant = {"tenant_id": console.tenant[ACME].id}
    limits = {"kind": "tenant", "requests_per_minute": 0}
    await console.admin.operations.change("replaceLimits", administrator, "req_1", tenant, limits)
    console.services.authenticator._known.clear()  # as if its 3 s had passed
    assert await speak(console, "admin", **headers) == 429
    await console.admin.operations.change("suspendTenant", administrator, "req_1", tenant)
    console.services.authenticator._known.clear()
    assert await speak(console, "admin", **headers) == 403
    assert billed(console) == []


async def test_without_scripts_one_question_has_a_whole_answer(browsing: Browsing) -> None:
    house = browsing.house
    page = await browsing.page("admin", script=False)
    await page.goto(f"/console{await started(house)}")
    await page.get_by_label("Question").fill("hi <b>")
    await page.get_by_label("System prompt").fill("Be brief.")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".answer")).to_have_text("Hello, world!")
    await expect(page.locator(".turn").first).to_contain_text("hi <b>")
    (event,) = billed(house)
    assert event.tenant_id == house.tenant[ACME].id
    assert event.request_id in await page.locator(".facts").inner_text()
    assert bytes(house.engine.calls[0].prompt[1:]).decode().startswith("<system>Be brief.\n<user>hi <b>\n")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"question": " "}, "question"),
        ({"temperature": "hot"}, "temperature"),
        ({"json_schema": "{"}, "json_schema"),
        ({"tools": "{}"}, "tools"),
        ({"temperature": "9"}, "temperature"),
    ],
)
async def test_what_cannot_be_asked_is_said_at_its_field(console: House, fields: dict[str, str], field: str) -> None:
    answer = await console.post("/playground", "ask", ACME, **{"question": "hi", "model": "tiny"} | fields)
    assert answer.status_code == 400
    assert 'class="note error"' in answer.text.split(f'name="{field}"')[1].split("</div>")[0]
    control = answer.text.split(f'name="{field}"')[1].split(">")[0]
    assert 'aria-invalid="true"' in control
    assert f'aria-describedby="{field}-error' in control
    assert f'id="{field}-error"' in answer.text
    assert billed(console) == []


async def test_parameters_and_two_models_side_by_side(browsing: Browsing) -> None:
    house = browsing.house
    house.engine.replies = {"tiny": "One.", "org/tiny-2": "Two."}
    page = await browsing.page(ACME)
    await page.goto("/console/playground")
    await page.get_by_label("Compare with").select_option("org/tiny-2")
    await page.get_by_text("Parameters").click()
    for label, value in (("Temperature", "0.5"), ("Top p", "0.25"), ("Seed", "7")):
        await page.get_by_label(label).fill(value)
    await ask(page, "hi")
    for text in ("One.", "Two."):
        await expect(page.locator(".answer", has_text=text)).to_be_visible()
    await until(lambda: len(billed(house)) == 2)
    assert {event.served_model for event in billed(house)} == {"tiny", "org/tiny-2"}
    for call in house.engine.calls:
        assert (call.params.temperature, call.params.top_p, call.params.seed) == (0.5, 0.25, 7)


async def test_a_request_is_copied_as_code_that_runs(browsing: Browsing) -> None:
    house = browsing.house
    page = await browsing.page(ACME)
    await page.goto("/console/playground")
    await page.get_by_label("Question").fill('it\'s "odd" $HOME')
    await page.get_by_role("button", name="Copy as curl").click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    environment = {**os.environ, "TURNPIKE_KEY": house.keys[ACME]}
    for command in (["sh", "-c"], [sys.executable, "-c"]):
        if command[0] != "sh":
            await page.get_by_role("button", name="Copy as Python").click()
            await expect(page.get_by_role("button", name="Copied")).to_be_visible()
        code = await page.evaluate("navigator.clipboard.readText()")
        assert house.keys[ACME] not in code
        process = await asyncio.create_subprocess_exec(
            *command, code, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        output, errors = await process.communicate()
        assert process.returncode == 0, errors
        assert b"Hello, world!" in output
        await expect(page.get_by_role("button", name="Copied")).to_have_count(0)
    prompts = [bytes(call.prompt[1:]).decode() for call in house.engine.calls]
    assert prompts == ['<user>it\'s "odd" $HOME\n<assistant>'] * 2


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
