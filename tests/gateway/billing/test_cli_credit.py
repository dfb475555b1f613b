"""`turnpike credit`, in-process."""

import json

import pytest

from tests.support.command_line import failure, ok

pytestmark = pytest.mark.usefixtures("no_settings")


def test_grant_and_list() -> None:
    ok("tenant", "create", "acme", "--tier", "standard")
    assert json.loads(ok("credit", "list", "--tenant", "acme", "--json")) == []
    said = ok("credit", "grant", "100", "--tenant", "acme", "--reason", "bank transfer", "--once", "T-1")
    assert said == "granted 100.00 dollars to acme (T-1)\n"
    ok("credit", "grant", "100", "--tenant", "acme", "--reason", "bank transfer", "--once", "T-1")
    ok("credit", "grant", "--tenant", "acme", "--reason", "a mistake", "--", "-0.5")
    entries = json.loads(ok("credit", "list", "--tenant", "acme", "--json"))
    assert [(entry["amount_dollars"], entry["reason"]) for entry in entries] == [
        ("100.00", "bank transfer"),
        ("-0.50", "a mistake"),
    ]
    assert ok("credit", "list", "--tenant", "acme").splitlines()[1].split()[1] == "100.00"


def test_refusals() -> None:
    ok("tenant", "create", "acme", "--tier", "standard")
    grant = ("credit", "grant", "100", "--tenant", "acme", "--reason", "r", "--once", "T-1")
    ok(*grant)
    assert "stands for another entry" in failure(1, *grant[:2], "50", *grant[3:])
    assert "nine decimals" in failure(1, "credit", "grant", "1e9", *grant[3:])
    assert "no tenant named nobody" in failure(1, "credit", "list", "--tenant", "nobody")
    assert "--reason" in failure(2, "credit", "grant", "1", "--tenant", "acme")
