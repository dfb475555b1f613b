"""Hostile input in a page's address or its forms: the console names the error, does not fail, and returns no markup."""

import re

import pytest

from gateway.management.console.screens import Screen
from tests.console.furnished import Furnished, address, console_of, furnish
from tests.console.house import House

VALUES = ("\x00", "é\u202e", "9" * 400, "-1", "2026-13-45T99:99", "' OR 1=1 --", '"><script>alert(1)</script>', "[]")
ANSWERS = {200, 303, 400, 403, 404, 409, 413, 422}


def names_of(page: str) -> list[str]:
    """Names of the fields and parameters of a page's forms and links."""
    return sorted({*re.findall(r' name="(\w+)"', page), *re.findall(r"[?&;](\w+)=", page)} - {"csrf", "act", "once"})


async def asked(furnished: Furnished, screen: Screen) -> tuple[str, list[str]]:
    page = await furnished.house.get(address(screen, furnished))
    return address(screen, furnished), names_of(page.text)


@pytest.fixture
async def furnished(console: House) -> Furnished:
    return await furnish(console)


async def test_no_address_makes_a_page_fail(furnished: Furnished) -> None:
    screens = [screen for screen in console_of(furnished).screens if screen.allowed]
    for screen in screens:
        path, names = await asked(furnished, screen)
        for at, name in enumerate(names):
            value = VALUES[at % len(VALUES)]
            answer = await furnished.house.get(path, params={name: value})
            assert answer.status_code in ANSWERS, (screen.name, name, value)
            assert "<script>alert" not in answer.text, (screen.name, name)


async def test_no_form_makes_a_page_fail(furnished: Furnished) -> None:
    screens = [screen for screen in console_of(furnished).screens if screen.allowed and screen.post]
    assert len(screens) > 5
    for screen in screens:
        path, names = await asked(furnished, screen)
        for act in screen.post:
            for value in VALUES:
                answer = await furnished.house.post(path, act, **dict.fromkeys(names, value))
                assert answer.status_code in ANSWERS, (screen.name, act, value, answer.text)
                assert "<script>alert" not in answer.text, (screen.name, act)
