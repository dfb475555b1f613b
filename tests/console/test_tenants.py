"""Tenants in the console: found, created, changed; and who may do what on the pages of management."""

import re
from html import escape
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.async_api import expect

from gateway.management.console import audit, credit, invoices, keys, limits, prices, reconciliation, tenants
from gateway.management.console.screens import Screen
from gateway.management.operations.roles import Role
from tests.console.browser import Browsing
from tests.console.house import House
from tests.console.html import text

_NOTHING: Any = SimpleNamespace(admin=SimpleNamespace(tiers={}), classes=SimpleNamespace(default_tier=""))
SCREENS: list[Screen] = [
    screen
    for module in (tenants, keys, limits, credit, invoices, prices, reconciliation, audit)
    for screen in module.SCREENS.bind(_NOTHING)
]
FILLED = {"name": "x", "tier": "premium", "month": "2026-01", "dollars": "1", "reason": "x", "kind": "tenant"}
FILLED |= {"model": "x", "input": "1", "output": "1"}
"""Values that every form here accepts."""
FINANCE = {
    *(("invoice", act) for act in ("credit", "pay", "void")),
    ("credit", "grant"),
    ("draft", "finalise"),
    ("prices", "add"),
    ("tenant", "bill_to"),
}
"""Forms of the role billing; the others are for the role admin alone."""


def at(console: House, screen: Screen, whose: str = "globex") -> str:
    return screen.path.format(
        tenant_id=console.tenant[whose].id, key_id=console.keys[whose].split("-")[1], invoice_number="INV-1"
    )


async def test_a_page_for_each_role_and_no_form_for_who_may_only_read(console: House) -> None:
    for screen in SCREENS:
        for role in Role:
            response = await console.get(at(console, screen), role.value)
            there = 404 if "{invoice_number}" in screen.path else 200
            assert (screen.name, response.status_code) == (screen.name, there if role in screen.allowed else 403)
            assert not any(key in response.text for key in console.keys.values())
            if role is Role.VIEWER:
                assert 'name="act"' not in response.text, screen.name


async def test_who_may_not_change_is_refused_whatever_is_sent(console: House) -> None:
    before = (await console.page("/audit")).count("<details>")
    for screen, act in ((each, act) for each in SCREENS for act in each.post):
        for who in ["viewer"] if (screen.name, act) in FINANCE else ["viewer", "billing"]:
            answer = await console.post(at(console, screen), act, who, **FILLED)
            # There is no invoice here: of one that is, test_invoices.
            assert (screen.name, act, answer.status_code) == (
                screen.name,
                act,
                404 if (screen.name, act) == ("invoice", "credit") else 403,
            )
    assert (await console.page("/audit")).count("<details>") == before


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.name)
async def test_a_tenant_reaches_no_other_tenants_pages(console: House, screen: Screen) -> None:
    """By its path, by its query, and by a form."""
    other = console.tenant["globex"]
    theirs = ("globex", other.id, console.keys["globex"].split("-")[1])
    for query in ("", f"?tenant_id={other.id}", f"?tenant_id={other.id}&run=yes&search=globex"):
        address = at(console, screen) + query
        response = await console.get(address, "acme")
        assert response.status_code in ((200, 404) if screen.tenants else (403,))
        # The search field shows again what was typed into it.
        shown = response.text.replace(escape(address), "").replace('name="search" type="search" value="globex"', "")
        assert not any(each in shown for each in theirs)
    for act in screen.post.keys() - {"ask"}:
        assert (await console.post(at(console, screen), act, "acme")).status_code == 403


async def test_a_form_without_the_sessions_token_does_nothing(console: House) -> None:
    answer = await console.post("/tenants", "create", csrf="", name="umbrella", tier="standard")
    assert answer.status_code == 403
    assert "umbrella" not in await console.page("/tenants")


async def test_tenants_are_found_by_pages_and_by_a_part_of_the_name(console: House) -> None:
    names = [f"tenant-{number:02}" for number in range(55)]
    for name in names:
        await console.tenants.create_tenant(name, "premium")
    first = await console.page("/tenants?tier=premium")
    assert f">{names[49]}<" in first
    assert f">{names[50]}<" not in first
    following = first.split('class="pager"')[1].split('href="/console')[1].split('"')[0].replace("&amp;", "&")
    second = await console.page(following)
    assert f">{names[50]}<" in second
    assert f">{names[0]}<" not in second
    assert 'class="pager"' not in second
    found = await console.page("/tenants?search=-07")
    assert f">{names[7]}<" in found
    assert f">{names[8]}<" not in found


async def test_a_tenant_is_created_once_however_often_the_form_is_sent(console: House) -> None:
    fields = {"name": "umbrella", "tier": "premium", "once": "a-rendering"}
    answers = [await console.post("/tenants", "create", **fields) for _ in range(2)]
    assert [each.status_code for each in answers] == [303, 303]
    assert answers[0].headers["location"] == answers[1].headers["location"]
    assert [each.name for each in await console.tenants.list_tenants()].count("umbrella") == 1
    page = await console.page(answers[0].headers["location"].removeprefix("/console"))
    assert "umbrella" in page
    assert "premium" in page


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"name": "a b", "tier": "premium"}, 400, "create-name"),
        ({"name": "acme", "tier": "premium"}, 409, "create-name"),
        ({"name": "fine", "tier": "gold"}, 400, "create-tier"),
        ({"name": "", "tier": "premium"}, 400, "create-name"),
    ],
)
async def test_an_error_stands_beside_its_field_and_what_was_typed_stays(
    console: House, fields: dict[str, str], status: int, field: str
) -> None:
    answer = await console.post("/tenants", "create", **fields)
    assert answer.status_code == status
    assert f'class="note error" id="{field}-note"' in answer.text
    assert f'value="{fields["name"]}"' in answer.text


async def test_a_tenant_is_moved_suspended_and_resumed(console: House) -> None:
    path = f"/tenants/{console.tenant['acme'].id}"
    for act, fields, shown in (
        ("move", {"tier": "premium"}, "<dd>premium</dd>"),
        ("suspend", {}, ">suspended<"),
        ("resume", {}, ">active<"),
        ("session", {"window": "summary"}, "Session window: summary"),
    ):
        answer = await console.post(path, act, **fields)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/console{path}")
        assert shown in await console.page(path)
    log = await console.page("/audit")
    assert console.keys["admin"].split("-")[1] in log
    for action in ("update", "suspend", "resume"):
        assert f"<td>{action}</td>" in log


async def test_a_routing_policy_is_stated(console: House) -> None:
    path = f"/tenants/{console.tenant['acme'].id}"
    fields = {
        "preference": "quality",
        "degrade": "true",
        "cascade_percent": "70",
        "aliases": "best = auto:org/tiny-2\n",
    }
    assert (await console.post(path, "routing", **fields)).status_code == 303
    page = await console.page(path)
    (routing,) = (text(row) for row in re.findall(r"<summary.*?</summary>", page, re.DOTALL) if "Preference" in row)
    shown = dict(each.split(": ", 1) for each in routing.removeprefix("Routing ").split("; "))
    assert (shown["Preference"], shown["Overload fallback"], shown["Budget fallback"]) == ("quality", "yes", "no")
    assert (shown["Cascade threshold (%)"], shown["Aliases"]) == ("70", "best = auto:org/tiny-2")
    refused = await console.post(path, "routing", **fields | {"aliases": "best auto"})
    assert refused.status_code == 400
    assert 'id="routing-aliases-note">Each line must be like this' in refused.text
    assert ">best auto</textarea>" in refused.text


async def test_credit_is_granted_and_taken_back_exactly(console: House) -> None:
    path = f"/tenants/{console.tenant['acme'].id}/credit"
    for dollars in ("12.000000001", "-2"):
        answer = await console.post(path, "grant", "billing", dollars=dollars, reason="by transfer")
        assert answer.status_code == 303, answer.text
    page = await console.page(path, "viewer")
    for amount in ("$12.000000001", "$-2.00", "$10.000000001"):
        assert amount in page
    for wrong in ("", "0", "12,50", "0.0000000001", "1e3"):
        refused = await console.post(path, "grant", dollars=wrong, reason="by transfer")
        assert refused.status_code == 400
        assert 'id="grant-dollars-note"' in refused.text
        assert 'class="note error"' in refused.text
        assert f'value="{wrong}"' in refused.text


@pytest.mark.parametrize("script", [True, False])
async def test_suspending_asks_first_by_keyboard_and_without_a_script(browsing: Browsing, script: bool) -> None:
    page = await browsing.page(script=script)
    await page.goto(f"/console/tenants/{browsing.house.tenant['acme'].id}")
    await page.locator("summary", has_text="Suspend").press("Enter")
    await expect(page.get_by_text("are rejected within 5 seconds")).to_be_visible()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("suspended")
