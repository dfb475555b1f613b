"""Keys in the console: a secret is in the one answer to the form that made it, and nowhere else."""

import re
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.async_api import expect
from structlog.testing import capture_logs

from tests.console.browser import Browsing
from tests.console.events import of_tenant, used
from tests.console.house import House
from tests.console.html import rows

SECRET = re.compile(r'id="secret"[^>]*>(tp-[a-z0-9]+-[A-Za-z0-9]+)<')


def id_of(console: House, who: str = "acme") -> str:
    return console.keys[who].split("-")[1]


def keys_of(console: House, whose: str = "acme") -> str:
    return f"/tenants/{console.tenant[whose].id}/keys"


async def works(console: House, key: str) -> bool:
    answer = await console.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
    return answer.status_code == 200


async def test_a_new_key_is_shown_once_and_nowhere_else(console: House, tmp_path: Path) -> None:
    with capture_logs() as log:
        shown = await console.post(keys_of(console), "create", name="batch jobs", scopes="chat", once="a-rendering")
        again = await console.post(keys_of(console), "create", name="batch jobs", scopes="chat", once="a-rendering")
    assert (shown.status_code, again.status_code) == (201, 201)
    assert "no-store" in shown.headers["cache-control"]
    (secret,) = SECRET.findall(shown.text)
    assert await works(console, secret)
    public_id, rest = secret.split("-")[1:]
    assert rest not in again.text
    assert "cannot be shown again" in again.text
    assert f"/console/keys/{public_id}" in again.text
    for path in (
        "",
        "/audit",
        "/keys",
        keys_of(console),
        f"/keys/{public_id}",
        f"/tenants/{console.tenant['acme'].id}",
    ):
        assert rest not in await console.page(path)
    assert rest not in str(log)
    with closing(sqlite3.connect(tmp_path / "turnpike.db")) as database:
        assert not any(rest in line for line in database.iterdump())


async def test_a_key_is_for_what_was_ticked(console: House) -> None:
    fields = {"scopes": ["chat", "usage"], "models": "tiny, org/tiny-2", "expires_at": "2099-01-02T12:30"}
    shown = await console.post(keys_of(console), "create", name="narrow", **fields)
    (secret,) = SECRET.findall(shown.text)
    page = await console.page(f"/keys/{secret.split('-')[1]}")
    for fact in ("<dd>chat, usage</dd>", "<dd>org/tiny-2, tiny</dd>", "2099-01-02 12:30:00", ">active<"):
        assert fact in page


@pytest.mark.parametrize(
    ("field", "value"),
    [("expires_at", "2001-01-01T00:00"), ("expires_at", "tomorrow"), ("name", "x" * 200), ("scopes", "everything")],
)
async def test_a_form_error_names_its_field_and_keeps_the_input(console: House, field: str, value: str) -> None:
    fields = {"name": "batch jobs", "models": "tiny"} | {field: value}
    answer = await console.post(keys_of(console), "create", **fields)
    assert answer.status_code == 400
    wrong = answer.text.split('class="field wrong"')
    assert len(wrong) == 2
    assert f'name="{field}"' in wrong[1].split("</div>")[0].split("</fieldset>")[0]
    for name in ("name", "models", "expires_at"):
        assert f'value="{fields.get(name, "")}"' in answer.text
    assert "batch jobs" not in await console.page(keys_of(console))


async def test_a_key_is_rotated_with_its_grace(console: House) -> None:
    old = id_of(console)
    shown = await console.post(f"/keys/{old}", "rotate", old_valid_until="", once="a-rendering")
    assert shown.status_code == 201
    (secret,) = SECRET.findall(shown.text)
    assert await works(console, secret)
    assert await works(console, console.keys["acme"])
    page = await console.page(f"/keys/{old}")
    assert f'href="/console/keys/{secret.split("-")[1]}"' in page
    assert ">rotated<" in page
    again = await console.post(f"/keys/{old}", "rotate", old_valid_until="", once="a-rendering")
    assert "cannot be shown again" in again.text
    refused = await console.post(f"/keys/{secret.split('-')[1]}", "rotate", old_valid_until="2199-01-01T00:00")
    assert refused.status_code == 400
    assert 'id="rotate-old_valid_until-note">' in refused.text
    assert '<details class="confirm" open>' in refused.text


async def test_a_key_is_narrowed_and_revoked(console: House) -> None:
    key = id_of(console)
    assert (await console.post(f"/keys/{key}", "narrow", scopes="embeddings", models="")).status_code == 303
    assert "<dd>embeddings</dd>" in await console.page(f"/keys/{key}")
    assert (await console.post(f"/keys/{key}", "narrow")).status_code == 303
    assert "<dd>all scopes</dd>" in await console.page(f"/keys/{key}")
    assert (await console.post(f"/keys/{key}", "revoke")).status_code == 303
    page = await console.page(f"/keys/{key}")
    assert ">revoked<" in page
    assert 'name="act"' not in page
    assert (await console.post(f"/keys/{key}", "rotate")).status_code == 409


async def test_a_tenant_sees_its_own_keys_without_a_way_to_them(console: House) -> None:
    page = await console.page("/keys", "acme")
    assert id_of(console) in page
    assert id_of(console, "globex") not in page
    assert 'href="/console/keys/' not in page
    assert 'name="act"' not in page
    assert (await console.get(f"/keys/{id_of(console)}", "acme")).status_code == 403


async def test_administrators_keys_are_on_a_page_of_their_own(console: House) -> None:
    page = await console.page("/keys", "viewer")
    assert 'href="/console/users"' in page
    assert not any(console.keys[who].split("-")[1] in page.split("<main")[1] for who in ("admin", "billing", "viewer"))


async def test_by_keyboard_alone_a_tenant_gets_a_key_that_is_revoked(browsing: Browsing) -> None:
    page = await browsing.page("admin")
    keyboard = page.keyboard

    async def reach(name: str) -> None:
        """By Tab, without a mouse."""
        for _ in range(80):
            told = await page.evaluate(
                "document.activeElement.innerText || document.activeElement.labels?.[0]?.innerText"
            )
            if told and told.split("\n")[0].strip().removesuffix(" *") == name:
                return
            await keyboard.press("Tab")
        raise AssertionError(f"Tab does not lead to {name}")

    await page.goto("/console/tenants")
    await reach("Create a tenant")
    await keyboard.press("Enter")
    await reach("Name")
    await keyboard.type("umbrella")
    await keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("umbrella")
    await reach("Keys")
    await page.get_by_role("navigation", name="Pages of this tenant").get_by_role("link", name="Keys").press("Enter")
    await reach("Create a key")
    await keyboard.press("Enter")
    await reach("Name")
    await keyboard.type("by hand")
    await keyboard.press("Enter")
    secret = await page.get_by_label("The key", exact=True).inner_text()
    assert secret.startswith("tp-")
    await reach("Copy")
    await keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == secret
    await reach("To the key's page")
    await keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("active")
    await reach("Revoke the key")
    await keyboard.press("Enter")
    await keyboard.press("Tab")
    await keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("revoked")
    assert secret.split("-")[2] not in await page.content()


async def test_without_a_script_the_key_can_be_selected(browsing: Browsing) -> None:
    page = await browsing.page("admin", script=False)
    await page.goto(f"/console{keys_of(browsing.house)}")
    await page.get_by_text("Create a key").click()
    await page.get_by_role("button", name="Create key").click()
    await expect(page.get_by_label("The key", exact=True)).to_have_text(re.compile("^tp-"))
    await expect(page.get_by_role("button", name="Copy")).to_be_hidden()


async def test_the_keys_of_a_suspended_tenant_say_so(console: House) -> None:
    tenant = f"/tenants/{console.tenant['acme'].id}"
    await console.post(tenant, "suspend")
    for path in (f"/keys/{id_of(console)}", "/keys?search=acme", f"{tenant}/keys"):
        page = await console.page(path)
        assert ">suspended<" in page
        assert ">active<" not in page
    await console.post(tenant, "resume")
    assert ">active<" in await console.page(f"/keys/{id_of(console)}")


async def test_keys_are_searched_and_say_who_created_them(console: House) -> None:
    await console.post(keys_of(console), "create", name="batch jobs")
    found = rows(await console.page("/keys?search=batch"), "Keys")
    assert [(row[0], row[2]) for row in found] == [("batch jobs", "acme")]
    assert found[0][7].endswith("by the admin")
    assert "Show all keys" in await console.page("/keys?search=nothing-like-this")
    assert "by the admin" not in await console.page("/keys", "acme")


async def test_last_use_and_spending_come_with_the_first_request(console: House) -> None:
    def row_of(page: str) -> list[str]:
        return next(row for row in rows(page, "Keys") if row[1].startswith(id_of(console)))

    assert row_of(await console.page("/keys"))[5:7] == ["never", "$0.00"]
    await used(console, of_tenant(console, "acme", 1, int(time.time() * 1000), cost_nanodollars=12_345_678_900))
    row = row_of(await console.page("/keys"))
    assert row[5] == f"{datetime.now(UTC):%Y-%m-%d %H}:00:00"
    assert row[6] == "$12.35"
    assert 'title="$12.3456789"' in await console.page("/keys", "acme")
