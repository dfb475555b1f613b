"""`turnpike limit`, in-process."""

import json
from pathlib import Path

import pytest

from gateway.tenancy.keys import parse_key
from tests.support.command_line import failure, ok

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture(autouse=True)
def acme(no_settings: Path) -> None:
    ok("tenant", "create", "acme", "--tier", "premium")


def test_set_and_list() -> None:
    assert json.loads(ok("limit", "list", "--json")) == []
    (acme_id,) = [each["id"] for each in json.loads(ok("tenant", "list", "--json"))]
    set_acme = ("limit", "set", "--tenant", "acme")
    assert ok(*set_acme, "--requests-per-minute", "60", "--dollars-per-month", "12.50") == (
        "changed the limits of tenant acme\n"
    )
    ok(*set_acme, "--requests-per-minute", "none", "--concurrent", "4")
    public_id = parse_key(ok("key", "create", "--tenant", "acme").strip()).public_id
    assert f"key {public_id} of tenant acme" in ok(*set_acme, "--key", public_id, "--tokens-per-day", "5")
    ok(*set_acme, "--model", "qwen", "--tokens-per-minute", "6", "--context-tokens", "7")
    key, model, tenant = json.loads(ok("limit", "list", "--json"))
    assert (key["kind"], key["scope_id"], key["tokens_per_day"]) == ("key", public_id, 5)
    assert (model["scope_id"], model["tokens_per_minute"], model["context_tokens"]) == ("qwen", 6, 7)
    assert tenant == {
        "tenant": "acme",
        "tenant_id": acme_id,
        "kind": "tenant",
        "scope_id": "",
        "requests_per_minute": None,
        "tokens_per_minute": None,
        "tokens_per_day": None,
        "concurrent": 4,
        "context_tokens": None,
        "nanodollars_per_month": 12_500_000_000,
    }
    assert "DOLLARS PER MONTH" in ok("limit", "list", "--tenant", "acme")
    counters = {each["name"]: each for each in json.loads(ok("limit", "show", "--tenant", "acme", "--json"))}
    assert (counters["concurrent"]["limit"], counters["concurrent"]["used"]) == (4, 0)


@pytest.mark.parametrize("dollars", ["0.0000000001", "nan", "inf", "a lot", "1e999999999", "", "-1", "1_0"])
def test_money_is_exact_or_refused(dollars: str) -> None:
    assert "nine decimals" in failure(2, "limit", "set", "--tenant", "acme", f"--dollars-per-month={dollars}")


def test_refusals() -> None:
    set_acme = ("limit", "set", "--tenant", "acme")
    assert "at least one" in failure(2, *set_acme)
    assert "whole number" in failure(2, *set_acme, "--concurrent", "-1")
    assert "whole number" in failure(2, *set_acme, "--concurrent", "1.5")
    assert "concurrent" in failure(1, *set_acme, "--concurrent", str(2**53))
    assert "nanodollars_per_month" in failure(1, *set_acme, "--dollars-per-month", "999999999999.999999999")
    assert "exclude" in failure(2, *set_acme, "--key", "a", "--model", "b", "--concurrent", "1")
    secret = "tp-whole-key-that-is-secret"
    assert secret not in failure(2, *set_acme, "--key", secret, "--concurrent", "1")
    assert "no tenant named" in failure(1, "limit", "set", "--tenant", "nobody", "--concurrent", "1")
