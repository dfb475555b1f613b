"""`turnpike route show` and `set`, in-process."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import failure, ok

pytestmark = pytest.mark.usefixtures("no_settings")
ACME = ("--tenant", "acme")
DEFAULT = {
    "preference": "balanced",
    "degrade": False,
    "degrade_near_budget": False,
    "cascade_percent": None,
    "aliases": [],
}


@pytest.fixture(autouse=True)
def acme(no_settings: Path) -> None:
    ok("tenant", "create", "acme", "--tier", "standard")


def changed(*options: str) -> dict[str, object]:
    said: dict[str, object] = json.loads(ok("route", "set", *ACME, *options))
    assert json.loads(ok("route", "show", *ACME)) == said
    return said


def test_show_and_set() -> None:
    assert json.loads(ok("route", "show", *ACME)) == DEFAULT
    first = changed(
        "--preference", "economy", "--degrade", "--cascade", "80", "--alias", "gpt-4o=auto", "--alias", "a=b"
    )
    assert first == DEFAULT | {
        "preference": "economy",
        "degrade": True,
        "cascade_percent": 80,
        "aliases": [{"name": "a", "model": "b"}, {"name": "gpt-4o", "model": "auto"}],
    }
    second = changed("--no-degrade", "--near-budget", "--cascade", "off", "--no-alias", "a", "--alias", "gpt-4o=big")
    aliases = [{"name": "gpt-4o", "model": "big"}]
    assert second == DEFAULT | {"preference": "economy", "degrade_near_budget": True, "aliases": aliases}


@pytest.mark.parametrize(
    ("code", "options", "said"),
    [
        (2, (), "at least one"),
        (2, ("--preference", "cheap"), "quality, balanced, economy"),
        (2, ("--cascade", "half"), "an integer"),
        (2, ("--cascade", "100"), "--cascade"),
        (2, ("--alias", "gpt-4o"), "not NAME=MODEL"),
        (1, ("--alias", "a b=m"), "alias"),
    ],
)
def test_what_cannot_be_is_one_line_and_changes_nothing(code: int, options: tuple[str, ...], said: str) -> None:
    assert said in failure(code, "route", "set", *ACME, *options)
    assert json.loads(ok("route", "show", *ACME)) == DEFAULT


@pytest.mark.parametrize("command", [("show",), ("set", "--degrade")])
def test_a_tenant_that_is_not_there(command: tuple[str, ...]) -> None:
    assert "no tenant named nobody" in failure(1, "route", *command, "--tenant", "nobody")
