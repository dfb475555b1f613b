"""Rules for every page: for whom it is, what it must not show, and how it looks and behaves in a
browser. A new screen is here by itself."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from gateway.management.console.headers import CONTENT_SECURITY_POLICY
from gateway.management.console.screens import Screen
from gateway.management.console.users import AdministratorUser, TenantUser
from tests.console.browser import PHONE, Browsing, serving
from tests.console.furnished import Furnished, address, console_of, furnish
from tests.console.house import ACME, open_house

VISITORS = ("admin", "billing", "viewer", ACME)
IN_BROWSER = ("admin", ACME)
"""The other roles see less of the same pages."""


@pytest.fixture(scope="module")
async def furnished(
    sqlite_schema: Path, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[Furnished]:
    """One for all tests here: they only look."""
    async with open_house(tmp_path_factory.mktemp("furnished"), sqlite_schema) as house:
        yield await furnish(house)


@pytest.fixture(scope="module")
async def walking(furnished: Furnished, browser: Browser) -> AsyncIterator[Browsing]:
    async with serving(furnished.house) as url:
        yield Browsing(furnished.house, url, browser)


async def admitted(furnished: Furnished, who: str) -> list[Screen]:
    house = furnished.house
    if who == ACME:
        user = TenantUser(await house.services.authenticator.authenticate(house.keys[who]))
    else:
        user = AdministratorUser(await house.admin.authenticate(house.keys[who]))
    return [screen for screen in console_of(furnished).screens if screen.admits(user)]


def test_names_and_paths_are_unique(furnished: Furnished) -> None:
    screens = console_of(furnished).screens
    for values in ([screen.name for screen in screens], [screen.path for screen in screens]):
        assert len(set(values)) == len(values)


@pytest.mark.parametrize("who", VISITORS)
async def test_a_screen_is_for_those_it_admits_and_shows_no_key(furnished: Furnished, who: str) -> None:
    house = furnished.house
    admitting = await admitted(furnished, who)
    for screen in console_of(furnished).screens:
        answer = await house.get(address(screen, furnished), who)
        assert answer.status_code == (200 if screen in admitting else 403), (screen.name, answer.text)
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["cache-control"] == "no-store"
        for key in house.keys.values():
            assert key not in answer.text


@pytest.mark.parametrize("who", VISITORS)
async def test_every_form_that_changes_something_carries_its_token(furnished: Furnished, who: str) -> None:
    for screen in await admitted(furnished, who):
        page = await furnished.house.page(address(screen, furnished), who)
        forms = re.findall(r'<form method="post".*?</form>', page, re.DOTALL)
        assert all(f'name="csrf" value="{furnished.house.csrf(who)}"' in form for form in forms), screen.name


@pytest.mark.parametrize("who", ["viewer", ACME])
async def test_who_only_reads_finds_no_form_that_changes_something(furnished: Furnished, who: str) -> None:
    for screen in await admitted(furnished, who):
        page = await furnished.house.page(address(screen, furnished), who)
        allowed = {"ask"} if screen.name == "playground" else set()  # a question of one's own, at one's own cost
        assert set(re.findall(r'name="act" value="(.*?)"', page)) == allowed, screen.name


@pytest.mark.parametrize("path_and_query", ["?window=%ff", "/tenants?limit=0", "/tenants?cursor=x", "/keys/%2e%2e"])
async def test_what_cannot_be_read_is_said_on_a_page(furnished: Furnished, path_and_query: str) -> None:
    answer = await furnished.house.get(path_and_query)
    assert answer.status_code in (200, 400, 404)
    assert answer.headers["content-type"].startswith("text/html")


LOOK = """() => {
  const wide = document.documentElement.scrollWidth > innerWidth;
  const unlabelled = [...document.querySelectorAll("input:not([type=hidden]), select, textarea")]
    .filter((each) => !each.labels?.length && !each.ariaLabel && each.checkVisibility()).map((each) => each.name);
  const nameless = [...document.querySelectorAll("a, button, summary")]
    .filter((each) => each.checkVisibility() && !(each.innerText.trim() || each.ariaLabel))
    .map((each) => each.outerHTML);
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  const twice = ids.filter((id, at) => ids.indexOf(id) !== at);
  const headings = [...document.querySelectorAll("h1, h2, h3")].map((each) => Number(each.tagName[1]));
  const skips = headings.some((level, at) => at > 0 && level > headings[at - 1] + 1);
  const one = document.querySelectorAll("h1").length === 1;
  const pictures = [...document.querySelectorAll("img:not([alt]), svg:not([aria-hidden]):not([role])")].length;
  return { wide, unlabelled, nameless, twice, skips: skips && one, one, pictures };
}"""
WELL = {"wide": False, "unlabelled": [], "nameless": [], "twice": [], "skips": False, "one": True, "pictures": 0}


@pytest.mark.parametrize("who", IN_BROWSER)
async def test_every_page_is_sound_on_a_phone(walking: Browsing, furnished: Furnished, who: str) -> None:
    """No errors, nothing that the content security policy forbids, nothing wider than the screen, and a label for
    everything that can be filled in or pressed."""
    walking.complaints.clear()
    page = await walking.page(who, size=PHONE)
    for screen in await admitted(furnished, who):
        answer = await furnished.house.get(address(screen, furnished), who)
        if not answer.text.startswith("<!doctype html>"):
            continue  # a part of a page, or a file
        await page.goto(f"/console{address(screen, furnished)}")
        assert await page.evaluate(LOOK) == WELL, screen.name
        assert walking.complaints == [], screen.name
    await page.context.close()


FOCUS = """() => {
  const at = document.activeElement;
  if (at === document.body) return null;
  const style = getComputedStyle(at);
  const box = at.getBoundingClientRect();
  return { what: at.outerHTML.slice(0, 120), seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
           there: box.width > 0 && box.height > 0, top: box.top + scrollY };
}"""


async def stops(page: Page) -> list[dict]:
    """All that Tab comes to, in order, once around."""
    found = []
    while len(found) < 400:
        await page.keyboard.press("Tab")
        stop = await page.evaluate(FOCUS)
        if stop is None:
            return found
        found.append(stop)
    raise AssertionError("Tab never comes to an end")


@pytest.mark.parametrize("path", ["", "/tenants", "/usage"])
async def test_the_keyboard_comes_everywhere_and_one_sees_where_it_is(walking: Browsing, path: str) -> None:
    page = await walking.page("admin")
    await page.goto(f"/console{path}")
    found = await stops(page)
    reachable = await page.evaluate(
        """[...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")]
           .filter((each) => each.checkVisibility() && !each.disabled).length"""
    )
    assert "Skip to the content" in found[0]["what"]
    assert len(found) >= reachable
    assert [stop["what"] for stop in found if not (stop["seen"] and stop["there"])] == []
    await page.context.close()
