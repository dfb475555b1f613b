"""The bill of adapters: exact at a multiple of the base's price as at an own one, a line for each."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.billing.invoices import compute_lines
from gateway.billing.month import Month
from gateway.billing.prices import (
    MAX_NANODOLLARS_PER_TOKEN,
    Price,
    PriceTerms,
    PriceVersion,
    joined_version,
    multiplied,
    split_version,
    version_id,
)
from gateway.billing.usage import NOTHING, LineKey, UsageSum
from gateway.metering.event import UsageEvent
from tests.support.billing import Clock, RecordedUsage, an_event, sum_of, utc
from tests.support.services import price_book
from tests.support.writers import InvoicingWriter, PriceWriter

OCTOBER, NOVEMBER = Month(2026, 10), Month(2026, 11)
MULTIPLE, OWN = "support:aaaaaaaaaaaa", "sql:bbbbbbbbbbbb"
START = utc("2026-01-01")

UNITS = st.integers(0, MAX_NANODOLLARS_PER_TOKEN)
MULTIPLIERS = st.decimals(0, 1000, places=6).map(lambda number: Decimal(f"{number.normalize():f}"))


def version_of(model: str, input: int, cached: int, output: int) -> PriceVersion:
    return PriceVersion(version_id(model, START), START, PriceTerms(model, input, cached, output, {}))


@given(UNITS, UNITS, UNITS, MULTIPLIERS)
def test_a_multiple_is_rounded_down_and_bounded(input: int, cached: int, output: int, multiplier: Decimal) -> None:
    plain = Price("m@2026-01-01T00:00:00.000Z", input, min(cached, input), output)
    multiple = multiplied(plain, multiplier)
    for name in ("prompt", "cached_prompt", "completion"):
        before, after = getattr(plain, name), getattr(multiple, name)
        exact = before * Fraction(multiplier)
        assert after == min(int(exact), MAX_NANODOLLARS_PER_TOKEN)
    assert multiple.cached_prompt <= multiple.prompt
    assert split_version(multiple.version) == (plain.version, multiplier)
    assert multiplied(plain, multiplier) == multiple


@given(st.text(max_size=20), MULTIPLIERS)
def test_a_version_says_its_multiplier_whatever_the_model_is_called(model: str, multiplier: Decimal) -> None:
    plain = version_id(model, START)
    assert split_version(plain) == (plain, 1)
    assert split_version(joined_version(plain, multiplier)) == (plain, multiplier)


def test_the_price_of_an_adapter() -> None:
    book = price_book({"m": ("1", "0.5", "4"), OWN: ("7", "7", "7")})
    plain = book.price_of("m", "standard", START)
    assert book.price_of_adapter(MULTIPLE, "m", Decimal(1), "standard", START) == plain
    assert book.price_of_adapter(MULTIPLE, "m", Decimal("0.5"), "standard", START).completion == 2000
    assert book.price_of_adapter(OWN, "m", Decimal("0.5"), "standard", START).completion == 7000


BASE = version_of("m", 100, 50, 401)
OWN_VERSION = version_of(OWN, 7, 7, 7)
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["", MULTIPLE, OWN, "other:cccccccccccc"]),
        st.sampled_from([Decimal(1), Decimal("1.3"), Decimal("0.333333"), Decimal(1000)]),
        st.integers(0, 1000),
        st.integers(0, 1000),
        st.integers(0, 1000),
    ),
    max_size=30,
)


def event(adapter_id: str, multiplier: Decimal, input: int, cached: int, output: int, at: datetime) -> UsageEvent:
    """As the gateway writes it: at the multiplier of the moment, or at an own price."""
    plain = BASE.price("standard")
    price = OWN_VERSION.price("standard") if adapter_id == OWN else multiplied(plain, multiplier if adapter_id else 1)
    return an_event("t", at, price, (input + cached, cached, output), served_model="m", adapter_id=adapter_id)


@given(REQUESTS, st.integers(0, 30))
def test_every_request_is_on_one_line_of_its_adapter(requests: list, invoiced: int) -> None:
    """Also where the multiplier changed in the month, and where some were invoiced before the rest came."""
    events = [event(*each, OCTOBER.start) for each in requests]

    def sums(some: list[UsageEvent]) -> Mapping[LineKey, UsageSum]:
        found: dict[LineKey, UsageSum] = {}
        for each in some:
            key = LineKey(OCTOBER, "m", each.tier_served, each.price_version, each.adapter_id)
            found[key] = found.get(key, NOTHING) + sum_of(each)
        return found

    charged = sums(events[:invoiced])
    early = compute_lines(charged, {}, [BASE, OWN_VERSION])
    late = compute_lines(sums(events), charged, [BASE, OWN_VERSION])
    assert early.discrepancies == late.discrepancies == ()
    lines = [*early.lines, *late.lines]
    assert sum(line.amount_nanodollars for line in lines) == sum(each.cost_nanodollars for each in events)
    for adapter_id in {each.adapter_id for each in events}:
        mine = sum(line.amount_nanodollars for line in lines if line.key.adapter_id == adapter_id)
        assert mine == sum(each.cost_nanodollars for each in events if each.adapter_id == adapter_id)


@pytest.mark.parametrize(
    "key",
    [
        LineKey(OCTOBER, "m", "standard", OWN_VERSION.id),
        LineKey(OCTOBER, "m", "standard", OWN_VERSION.id, MULTIPLE),
        LineKey(OCTOBER, "m", "standard", f"{OWN_VERSION.id}*2", OWN),
        LineKey(OCTOBER, "m", "standard", f"{BASE.id}*2"),
        LineKey(OCTOBER, "n", "standard", BASE.id, MULTIPLE),
    ],
)
def test_a_price_of_something_else_is_no_line(key: LineKey) -> None:
    reckoning = compute_lines({key: UsageSum(1, 1, 0, 0, 7)}, {}, [BASE, OWN_VERSION])
    assert reckoning.lines == ()
    assert [each.problem for each in reckoning.discrepancies] == ["no such price version of this model"]


async def test_invoices_in_the_books_have_a_line_for_each_adapter(database: AsyncEngine, acme: str) -> None:
    clock, usage = Clock(utc("2026-12-02")), RecordedUsage()
    prices = PriceWriter(database, now=clock)
    plain = (await prices.add(PriceTerms.from_dollars("m", Decimal(1), Decimal(4)), START)).price("standard")
    own = (await prices.add(PriceTerms.from_dollars(OWN, Decimal(7), Decimal(7)), START)).price("standard")
    dearer = multiplied(plain, Decimal("1.2345"))

    def use(price: Price, adapter_id: str, at: datetime) -> None:
        usage.record(an_event(acme, at, price, (100, 10, 33), served_model="m", adapter_id=adapter_id))

    for price, adapter_id in ((plain, ""), (plain, MULTIPLE), (dearer, MULTIPLE), (own, OWN)):
        use(price, adapter_id, utc("2026-10-15"))
    invoicing = InvoicingWriter(database, usage, grace_s=3600, now=clock)
    october = await invoicing.finalise("acme", OCTOBER)
    assert october is not None
    lines = [(line.key.adapter_id, line.key.price_version) for line in october.statement.lines]
    assert sorted(lines) == sorted(
        [("", plain.version), (MULTIPLE, plain.version), (MULTIPLE, dearer.version), (OWN, own.version)]
    )
    assert october.statement.total_nanodollars == sum(each.cost_nanodollars for each in usage.events.values())
    assert await invoicing.finalise("acme", OCTOBER) == october
    use(dearer, MULTIPLE, utc("2026-10-16"))
    november = await invoicing.finalise("acme", NOVEMBER)
    assert november is not None
    [late] = november.statement.lines
    assert (late.key.adapter_id, late.key.price_version, late.usage.events) == (MULTIPLE, dearer.version, 1)
    assert late.price == dearer
