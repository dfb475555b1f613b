"""`turnpike invoice`, in-process, with the embedded stores."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import failure, ok, turnpike
from tests.support.invoiced_usage import MONTH, THIS_MONTH, use

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture(autouse=True)
def acme(no_settings: Path) -> None:
    ok("tenant", "create", "acme", "--tier", "premium")
    ok("price", "set", "m", "--input", "0.15", "--output", "0.60", "--effective-from", "2020-01-01")


def test_from_draft_to_credit_note() -> None:
    use((MONTH, 10**6), (MONTH, 1))
    draft = json.loads(ok("invoice", "draft", str(MONTH), "--tenant", "acme"))
    assert (draft["number"], draft["total_dollars"]) == (None, "0.15000015")
    assert "draft,usage,1" in ok("invoice", "draft", str(MONTH), "--tenant", "acme", "--format", "csv")

    number = f"INV-{MONTH}-000001"
    listed = ok("invoice", "finalise", str(MONTH))
    row = listed.splitlines()[1].split()
    assert row[:4] + row[5:] == [number, "acme", str(MONTH), "open", "0.15000015", "0.15", "0.00", "0.00", "0.15"]
    assert ok("invoice", "finalise", str(MONTH), "--tenant", "acme") == listed
    assert number in failure(1, "invoice", "draft", str(MONTH), "--tenant", "acme")

    credit = ("invoice", "credit", number, "--reason", "a slow day")
    note = f"CN-{THIS_MONTH}-000001"
    assert ok(*credit, "--amount", "0.10", "--line", "1") == f"made {note}: 0.10 dollars of {number}\n"
    assert "0.05000015 dollars are left" in failure(1, *credit, "--amount", "0.06")
    shown = json.loads(ok("invoice", "show", number))
    assert (shown["due_dollars"], shown["credit_notes"][0]["number"]) == ("0.05000015", note)
    page = ok("invoice", "show", number, "--format", "html")
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    (summary,) = json.loads(ok("invoice", "list", "--json", "--tenant", "acme", "--month", str(MONTH)))
    assert (summary["number"], summary["total_dollars"], summary["due_dollars"]) == (number, "0.15000015", "0.05000015")
    assert json.loads(ok("invoice", "list", "--json", "--month", str(MONTH.plus(1)))) == []


def test_an_invoice_is_paid_or_void_with_terms_of_settings_and_tenant(no_settings: Path) -> None:
    (no_settings / "turnpike.toml").write_text(
        'issuer_name = "Turnpike Inc."\nissuer_address = "1 Toll Road\\nSpringfield"\nissuer_tax_id = "XX1"\n'
        "invoice_payment_days = 14\ninvoice_tax_percent = 19\n"
    )
    ok("tenant", "create", "zeta", "--tier", "standard")
    billed = ("bill-to", "set", "--tenant", "acme", "--name", "Acme GmbH", "--address", "Hauptstr. 1\n10115 Berlin")
    party = {"name": "Acme GmbH", "address": "Hauptstr. 1\n10115 Berlin", "tax_id": ""}
    assert json.loads(ok(*billed)) == json.loads(ok("bill-to", "show", "--tenant", "acme")) == party
    use((MONTH, 10**7))
    use((MONTH, 10**7), tenant="zeta")
    first, second = (line.split() for line in ok("invoice", "finalise", str(MONTH)).splitlines()[1:])
    assert first[3:] == ["open", first[4], "1.50", "1.79", "0.00", "0.00", "1.79"]

    assert ok("invoice", "pay", first[0], "--reference", "transfer 7") == f"{first[0]} is paid: 1.79 dollars\n"
    assert ok("invoice", "void", second[0], "--reason", "a test") == f"{second[0]} is void\n"
    assert "is void" in failure(1, "invoice", "pay", second[0])
    shown = json.loads(ok("invoice", "show", first[0]))
    assert (shown["status"], shown["settlement_note"], shown["payable"]["due_cents"]) == ("paid", "transfer 7", 0)
    issuer = {"name": "Turnpike Inc.", "address": "1 Toll Road\nSpringfield", "tax_id": "XX1"}
    assert (shown["issuer"], shown["bill_to"], shown["tax_percent"]) == (issuer, party, "19")
    for status, number in (("paid", first[0]), ("void", second[0])):
        assert [each["number"] for each in json.loads(ok("invoice", "list", "--json", "--status", status))] == [number]
    assert json.loads(ok("invoice", "list", "--json", "--status", "open")) == []


def test_what_comes_late_is_on_the_next_invoice() -> None:
    use((MONTH, 10))
    ok("invoice", "finalise", str(MONTH))
    use((MONTH, 5))
    csv = ok("invoice", "draft", str(MONTH.plus(1)), "--tenant", "acme", "--format", "csv")
    assert f"draft,adjustment,1,{MONTH},m,standard" in csv


def test_one_tenant_whose_books_differ_stops_no_other() -> None:
    ok("tenant", "create", "zeta", "--tier", "standard")
    use((MONTH, 10), cost_off_by=1)
    use((MONTH, 10), tenant="zeta")
    assert "nobody" in failure(1, "invoice", "finalise", str(MONTH), "--tenant", "nobody")
    result = turnpike("invoice", "finalise", str(MONTH))
    assert result.exit_code == 1
    assert f"not invoiced: acme: {MONTH}, m, standard" in result.stderr
    assert "zeta" in result.stdout
    (summary,) = json.loads(ok("invoice", "list", "--json"))
    assert summary["tenant"] == "zeta"


def test_refusals() -> None:
    assert "can be invoiced from" in failure(1, "invoice", "finalise", str(THIS_MONTH))
    assert "YYYY-MM" in failure(1, "invoice", "finalise", "november")
    assert "no invoice" in failure(1, "invoice", "show", "INV-2026-11-000009")
    assert "no tenant named" in failure(1, "invoice", "draft", str(MONTH), "--tenant", "nobody")
    assert "nine decimals" in failure(1, "invoice", "credit", "INV", "--amount", "1e9", "--reason", "why")
