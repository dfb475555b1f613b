"""The reckoning: every event is charged once, whatever the order in which events arrive and months are closed."""

import re
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.errors import BooksDiffer
from gateway.billing.invoices import Draft, Statement, add_up, compute_lines, select_months
from gateway.billing.month import Month
from gateway.billing.prices import PriceTerms, PriceVersion, version_id
from gateway.billing.usage import DIGEST_MODULUS, NOTHING, LineKey, UsageSum
from tests.support.billing import an_event, sum_of, utc

MONTHS = [Month(2026, number) for number in (9, 10, 11)]
VERSIONS = [
    PriceVersion(
        version_id("m", start),
        start,
        PriceTerms.from_dollars("m", Decimal(dollars), Decimal(4), cached_input=Decimal("0.1")),
    )
    for start, dollars in ((utc("2026-01-01"), 1), (utc("2026-10-10"), 2))
]
LATE = Month(2027, 1)

ARRIVALS = st.tuples(
    st.sampled_from(MONTHS),
    st.sampled_from(["premium", "standard"]),
    st.sampled_from(VERSIONS),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(0, 1000),
)
CLOSINGS = st.sampled_from(MONTHS)


def key(month: Month = MONTHS[0], tier: str = "standard", version: PriceVersion = VERSIONS[0]) -> LineKey:
    return LineKey(month, "m", tier, version.id)


def used_by(month: Month, tier: str, version: PriceVersion, input: int, cached: int, output: int) -> UsageSum:
    price = version.price(tier)
    return sum_of(an_event("t", month.start, price, (input + cached, cached, output), tier_served=tier))


@given(st.lists(ARRIVALS | CLOSINGS))
def test_every_event_is_charged_once(steps: list[object]) -> None:
    used: dict[LineKey, UsageSum] = {}
    invoices: dict[Month, list[tuple[LineKey, UsageSum]]] = {}

    def close(month: Month) -> None:
        if month in invoices:
            return
        sums = {each: usage for each, usage in used.items() if each.usage_month <= month}
        mine, _ = select_months(sums, month, invoices.keys())
        charged = add_up(line for lines in invoices.values() for line in lines if line[0].usage_month <= month)
        reckoning = compute_lines(mine, charged, VERSIONS)
        assert reckoning.discrepancies == ()
        if reckoning.lines:
            invoices[month] = [(line.key, line.usage) for line in reckoning.lines]

    for step in steps:
        if isinstance(step, Month):
            close(step)
        else:
            month, tier, version, input, cached, output = step  # type: ignore[misc]
            where = key(month, tier, version)
            used[where] = used.get(where, NOTHING) + used_by(month, tier, version, input, cached, output)
    for month in (*MONTHS, LATE):
        close(month)
    assert add_up(line for lines in invoices.values() for line in lines) == used


def test_lines_are_tokens_at_unit_prices() -> None:
    usage = used_by(MONTHS[0], "premium", VERSIONS[0], 10, 5, 2)
    (line,) = compute_lines({key(tier="premium"): usage}, {}, VERSIONS).lines
    assert (line.price.prompt, line.price.cached_prompt, line.price.completion) == (3000, 300, 12_000)
    assert line.amount_nanodollars == 10 * 3000 + 5 * 300 + 2 * 12_000


def test_a_month_without_an_invoice_is_left_to_its_own() -> None:
    used = {key(month): used_by(month, "standard", VERSIONS[0], 1, 1, 1) for month in MONTHS}
    mine, open_months = select_months(used, MONTHS[2], {MONTHS[0]})
    assert [each.usage_month for each in mine] == [MONTHS[0], MONTHS[2]]
    assert open_months == (MONTHS[1],)


@pytest.mark.parametrize(
    ("used", "charged", "versions", "problem"),
    [
        ({"cost_nanodollars": 1}, {}, VERSIONS, r"5100 .*5101"),
        ({"input_tokens": 1}, {}, VERSIONS, r"6100 .*5100"),
        ({}, {"events": 1}, VERSIONS, "less usage"),
        ({}, {"output_tokens": 1}, VERSIONS, "less usage"),
        ({}, {"digest": 1}, VERSIONS, "changed"),
        ({}, {}, VERSIONS[1:], "price version"),
    ],
)
def test_mismatches_are_named(
    used: dict[str, int], charged: dict[str, int], versions: list[PriceVersion], problem: str
) -> None:
    right = used_by(MONTHS[0], "standard", VERSIONS[0], 1, 1, 1)

    def off(by: dict[str, int]) -> UsageSum:
        return replace(right, **{name: getattr(right, name) + amount for name, amount in by.items()})

    before = {key(): off(charged)} if charged else {}
    reckoning = compute_lines({key(): off(used)}, before, versions)
    assert reckoning.lines == ()
    (discrepancy,) = reckoning.discrepancies
    assert re.search(problem, discrepancy.problem)
    draft = Draft(Statement("t", "acme", MONTHS[0], ()), reckoning.discrepancies, ())
    with pytest.raises(BooksDiffer, match=r"^2026-09, m, standard, m@2026-01-01T00:00:00.000Z: "):
        draft.check()


def test_usage_that_went_is_named_even_where_none_is_left() -> None:
    charged = {key(): used_by(MONTHS[0], "standard", VERSIONS[0], 1, 1, 1)}
    (discrepancy,) = compute_lines({}, charged, VERSIONS).discrepancies
    assert discrepancy.key == key()


SUMS = st.builds(UsageSum, *[st.integers(0, 2**62) for _ in range(5)], digest=st.integers(0, DIGEST_MODULUS - 1))


@given(SUMS, SUMS)
def test_sums_of_sets(one: UsageSum, other: UsageSum) -> None:
    assert one + other == other + one
    assert one + other - other == one
    assert one - one == NOTHING
