"""turnpike console."""

import json
import re

import pytest

from tests.support.command_line import failure, ok

pytestmark = pytest.mark.usefixtures("no_settings")


def test_a_link_is_for_the_settings_address_or_the_stated_one() -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:8080/console/link\?token=[\w-]{43}\n", ok("console", "link"))
    stated = ok("console", "link", "--role", "viewer", "--address", "https://gateway.example/")
    assert re.fullmatch(r"https://gateway\.example/console/link\?token=[\w-]{43}\n", stated)
    keys = json.loads(ok("admin-key", "list", "--json"))
    assert sorted(each["role"] for each in keys) == ["admin", "viewer"]
    assert all(each["name"].startswith("console links of ") for each in keys)
    ok("console", "link")
    assert len(json.loads(ok("admin-key", "list", "--json"))) == 2


def test_a_link_is_audited_and_so_is_the_key_that_it_makes_once() -> None:
    def made() -> list[tuple[str, str, str]]:
        found = json.loads(ok("audit", "list", "--json"))
        return sorted((each["action"], each["resource"], each["actor"].partition(":")[0]) for each in found)

    key, link = ("create", "admin_key", "command-line"), ("create", "console_link", "command-line")
    ok("console", "link", "--role", "viewer")
    assert made() == [key, link]
    ok("console", "link", "--role", "viewer")
    assert made() == [key, link, link]


def test_a_role_that_does_not_exist_is_refused() -> None:
    assert "root" in failure(2, "console", "link", "--role", "root")
