"""Links that log in to the console once."""

import asyncio
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import structlog
from playwright.async_api import expect

from gateway.management.console.links import LINK_LIFETIME, ConsoleLinks
from gateway.management.console.login import SESSION_COOKIE
from gateway.management.console.throttle import MAX_FAILURES
from gateway.management.operations.admin_keys import AdminKeyStore
from gateway.management.operations.roles import Role
from gateway.process.serving import console_link
from tests.console.browser import Browsing
from tests.console.house import ORIGIN, House
from tests.support.tenants import PEPPER

ACTOR = "command-line:ada"


def links_of(house: House, now: datetime | None = None) -> ConsoleLinks:
    return ConsoleLinks(house.admin.context.database, PEPPER, (lambda: now) if now else lambda: datetime.now(UTC))


async def token_of(house: House, role: Role = Role.ADMIN, now: datetime | None = None) -> str:
    link = await links_of(house, now).create(ORIGIN, role, "ada", ACTOR)
    assert link.url.startswith(f"{ORIGIN}/console/link?token=")
    return link.url.partition("=")[2]


async def redeem(house: House, token: str) -> httpx.Response:
    return await house.http.post("/console/link", data={"token": token})


async def test_a_link_logs_in_once_as_its_role(console: House) -> None:
    token = await token_of(console, Role.BILLING)
    page = await console.http.get("/console/link", params={"token": token})
    assert (page.status_code, "set-cookie" in page.headers) == (200, False)
    assert f'name="token" value="{token}"' in page.text
    assert page.headers["referrer-policy"] == "strict-origin"
    answer = await redeem(console, token)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")
    assert ">billing</span>" in (await console.http.get("/console")).text
    console.http.cookies.clear()
    again = await redeem(console, token)
    assert (again.status_code, "set-cookie" in again.headers) == (401, False)


async def test_of_many_who_open_a_link_at_once_one_is_logged_in(console: House) -> None:
    token = await token_of(console)
    answers = await asyncio.gather(*(redeem(console, token) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [303] + [401] * 7


async def test_a_link_expires(console: House) -> None:
    late = datetime.now(UTC) - LINK_LIFETIME
    assert (await redeem(console, await token_of(console, now=late))).status_code == 401
    in_time = late + timedelta(seconds=60)
    assert (await redeem(console, await token_of(console, now=in_time))).status_code == 303


@pytest.mark.parametrize("token", ["", "x", "A" * 43, "é" * 43])
async def test_an_unknown_link_opens_nothing(console: House, token: str) -> None:
    answer = await redeem(console, token)
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


async def test_failed_links_count_as_failed_logins(console: House) -> None:
    token = await token_of(console)
    for _ in range(MAX_FAILURES):
        assert (await redeem(console, "x")).status_code == 401
    answer = await redeem(console, token)
    assert (answer.status_code, "retry-after" in answer.headers) == (429, True)
    assert (await console.http.post("/console/login", data={"key": console.keys["admin"]})).status_code == 429


async def test_a_form_of_another_site_uses_up_no_link(console: House) -> None:
    token = await token_of(console)
    evil = {"origin": "https://evil.example"}
    assert (await console.http.post("/console/link", data={"token": token}, headers=evil)).status_code == 403
    assert (await redeem(console, token)).status_code == 303


async def test_the_key_of_links_is_listed_and_its_revocation_ends_links_and_sessions(console: House) -> None:
    keys = AdminKeyStore(console.admin.context.database, PEPPER)
    first, second = await token_of(console), await token_of(console)
    (key,) = [each for each in await keys.list_all() if each.name == "console links of ada"]
    await keys.revoke(key.public_id, ACTOR)
    assert (await redeem(console, first)).status_code == 401
    assert (await redeem(console, second)).status_code == 401
    assert (await redeem(console, await token_of(console))).status_code == 303


async def test_neither_the_log_nor_the_database_holds_a_token(console: House, tmp_path: Path) -> None:
    token = await token_of(console)
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as logged:
        await console.http.get("/console/link", params={"token": token})
        await redeem(console, token)
    assert token not in str(logged)
    assert [each["status"] for each in logged if each["event"] == "request"] == [200, 303]
    with closing(sqlite3.connect(tmp_path / "turnpike.db")) as database:
        lines = list(database.iterdump())
    assert not any(token in line for line in lines)
    assert any("console_link" in line and ACTOR in line for line in lines)  # its entry in the audit log


async def test_the_demo_prints_a_link_for_its_own_address(browsing: Browsing) -> None:
    url = await console_link(browsing.house.admin, browsing.url)
    page = await browsing.page("", script=False)
    await page.goto(url)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    await page.goto(url)  # who is logged in needs no link
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    await page.context.clear_cookies(name=SESSION_COOKIE)
    await page.goto(url)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    browsing.complaints.remove(next(each for each in browsing.complaints if "401" in each))


async def test_the_login_says_how_to_get_a_key(console: House) -> None:
    page = await console.page("/login", "")
    assert "Turnpike" in re.findall(r"<h1>(.*?)</h1>", page, re.DOTALL)[0]
    assert "turnpike admin-key create" in page
    assert "turnpike console link" in page
