"""Cents of an invoice: rounded once, by a stated rule, and always adding up."""

from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.invoices import CreditNote, Invoice, InvoiceLine, InvoiceStatus, Settlement, Statement
from gateway.billing.month import Month
from gateway.billing.payable import payable, tax_of
from gateway.billing.prices import Price
from gateway.billing.render import fields
from gateway.billing.terms import InvoiceTerms, parse_tax_rate, percent_text
from gateway.billing.usage import LineKey, UsageSum
from tests.support.billing import utc

MONTH = Month(2026, 11)
CENT = 10**7
RATES = st.integers(0, 100_000)
AMOUNTS = st.lists(st.integers(1, 10**15), min_size=1, max_size=6)


def invoice_of(
    amounts: list[int], rate: int, credited: tuple[int, ...] = (), settlement: Settlement | None = None
) -> Invoice:
    """With a line of one token at each of the amounts, and a credit note of each of `credited`."""
    lines = [
        InvoiceLine(LineKey(MONTH, f"m{n}", "standard", "p"), UsageSum(1, 1, 0, 0, amount, n), Price("p", amount, 0, 0))
        for n, amount in enumerate(amounts)
    ]
    notes = [CreditNote(f"CN-{n}", "INV", None, amount, "why", utc("2026-12-03")) for n, amount in enumerate(credited)]
    statement = Statement("t", "acme", MONTH, tuple(lines))
    return Invoice(
        "INV", statement, utc("2026-12-01"), tuple(notes), InvoiceTerms(tax_rate=rate), settlement=settlement
    )


def exactly(amount: Decimal) -> int:
    return int(amount.quantize(Decimal(1), ROUND_HALF_UP))


@pytest.mark.parametrize(
    ("nanodollars", "rate", "net", "tax"),
    [
        (0, 19_000, 0, 0),
        (4_999_999, 0, 0, 0),
        (5_000_000, 0, 1, 0),
        (195_001, 19_000, 0, 0),
        (24_219_600, 0, 2, 0),
        (100_000_000, 8_875, 10, 1),
        (12_345_000_000, 19_000, 1235, 235),
        (50 * CENT, 1_000, 50, 1),
        (49 * CENT, 1_000, 49, 0),
    ],
)
def test_half_a_cent_is_rounded_up(nanodollars: int, rate: int, net: int, tax: int) -> None:
    found = payable(nanodollars, rate)
    assert (found.net_cents, found.tax_cents, found.total_cents) == (net, tax, net + tax)


@given(AMOUNTS, RATES)
def test_rounding_changes_no_line_and_net_and_tax_are_the_total(amounts: list[int], rate: int) -> None:
    shown = fields(invoice_of(amounts, rate))
    assert [line["amount_nanodollars"] for line in shown["lines"]] == amounts
    assert shown["total_nanodollars"] == sum(amounts)
    cents = shown["payable"]
    assert cents["net_cents"] == exactly(Decimal(sum(amounts)) / CENT)
    assert cents["tax_cents"] == exactly(Decimal(cents["net_cents"]) * Decimal(rate) / 100_000)
    assert cents["net_cents"] + cents["tax_cents"] == cents["total_cents"] == cents["due_cents"]
    assert Decimal(cents["total_dollars"]) * 100 == cents["total_cents"]


@given(st.data(), AMOUNTS, RATES)
def test_credit_notes_take_off_the_same_cents_in_any_number(data: st.DataObject, amounts: list[int], rate: int) -> None:
    credited = data.draw(st.integers(0, sum(amounts)))
    cut = data.draw(st.integers(0, credited))
    once, twice = invoice_of(amounts, rate, (credited,)), invoice_of(amounts, rate, (cut, credited - cut))
    assert once.amounts == twice.amounts
    assert once.amounts.due_cents == payable(sum(amounts) - credited, rate).total_cents >= 0
    assert once.amounts.credited_cents + once.amounts.due_cents == once.amounts.issued.total_cents
    if credited == sum(amounts):
        assert once.amounts.due_cents == 0


@given(st.integers(-(10**15), 10**15), RATES)
def test_a_negative_amount_is_the_mirror_of_a_positive_one(nanodollars: int, rate: int) -> None:
    there, back = payable(nanodollars, rate), payable(-nanodollars, rate)
    assert (there.net_cents, there.tax_cents) == (-back.net_cents, -back.tax_cents)
    assert tax_of(there.net_cents, 0) == 0


def test_what_is_due_depends_on_the_status() -> None:
    paid = Settlement(InvoiceStatus.PAID, 119, "transfer 7", utc("2026-12-05"))
    void = Settlement(InvoiceStatus.VOID, 0, "a wrong tenant", utc("2026-12-05"))
    assert invoice_of([100 * CENT], 19_000).amounts.due_cents == 119
    assert invoice_of([100 * CENT], 19_000, settlement=paid).amounts.due_cents == 0
    assert invoice_of([100 * CENT], 19_000, settlement=void).amounts.due_cents == 0
    after = invoice_of([100 * CENT], 19_000, (10 * CENT,), paid).amounts
    assert (after.paid_cents, after.credited_cents, after.due_cents) == (119, 12, -12), "to be paid back"


@pytest.mark.parametrize(
    ("percent", "rate"), [("0", 0), ("0.0", 0), ("19", 19_000), ("8.875", 8_875), ("100", 100_000)]
)
def test_a_tax_rate_is_exact(percent: str, rate: int) -> None:
    assert parse_tax_rate(Decimal(percent)) == rate
    assert Decimal(percent_text(rate)) == Decimal(percent)


@pytest.mark.parametrize("percent", ["-1", "100.001", "8.8755", "NaN", "Infinity"])
def test_other_tax_rates_are_refused(percent: str) -> None:
    with pytest.raises(ValueError, match="a tax rate"):
        parse_tax_rate(Decimal(percent))
