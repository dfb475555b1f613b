"""Engine time against revenue: what is shown adds up to what was there."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.cost_view import NS_PER_HOUR, CostRow, cost_view, divide_costs
from gateway.billing.errors import InvalidAmount
from gateway.billing.prices import Price
from gateway.billing.usage import EngineTime
from tests.support.billing import RecordedUsage, an_event, utc

HOUR = NS_PER_HOUR
TIERS = st.sampled_from(["premium", "standard", "batch"])
TIMES = st.builds(
    EngineTime,
    st.sampled_from(["t1", "t2"]),
    TIERS,
    st.integers(0, 10**15),
    st.dictionaries(TIERS, st.integers(0, 10**12)),
    st.integers(0, 10**12),
)


def test_who_preempts_bears_what_is_repeated() -> None:
    times = [EngineTime("t1", "premium", 2 * HOUR, {}, 9), EngineTime("t2", "standard", 3 * HOUR, {"premium": HOUR}, 5)]
    view = divide_costs(times, 10)
    assert view.rows == (
        CostRow("premium", None, HOUR, 10, 0),
        CostRow("premium", "t1", 2 * HOUR, 20, 9),
        CostRow("standard", "t2", 3 * HOUR, 30, 5),
    )
    assert view.by_tier() == (CostRow("premium", None, 3 * HOUR, 30, 9), CostRow("standard", None, 3 * HOUR, 30, 5))
    assert [row.margin_nanodollars for row in view.by_tenant()] == [-10, -11, -25]
    assert view.total() == CostRow("", None, 6 * HOUR, 60, 14)


@given(st.lists(TIMES), st.integers(0, 10**11))
def test_everything_adds_up(times: list[EngineTime], nanodollars_per_hour: int) -> None:
    view = divide_costs(times, nanodollars_per_hour)
    total = view.total()
    assert total.engine_ns == sum(each.engine_ns + sum(each.recompute_ns.values()) for each in times)
    assert total.revenue_nanodollars == sum(each.revenue_nanodollars for each in times)
    assert total.cost_nanodollars == total.engine_ns * nanodollars_per_hour // NS_PER_HOUR
    for row in view.rows:
        assert row.cost_nanodollars is not None
        assert abs(row.cost_nanodollars - Fraction(row.engine_ns * nanodollars_per_hour, NS_PER_HOUR)) < 1
    for parts in (view.by_tier(), view.by_tenant()):
        for column in ("engine_ns", "cost_nanodollars", "revenue_nanodollars", "margin_nanodollars"):
            assert sum(getattr(part, column) for part in parts) == getattr(total, column)


async def test_of_a_span_of_time() -> None:
    usage = RecordedUsage()
    price = Price("m@v", 1, 1, 1)
    for day, ns in ((1, HOUR), (2, 2 * HOUR), (3, 4 * HOUR)):
        usage.record(
            an_event("t", utc(f"2026-11-0{day}"), price, (1, 0, 1), engine_ns=ns, recompute_ns={"premium": day})
        )
    span = (utc("2026-11-01"), utc("2026-11-03"))
    total = (await cost_view(usage, *span, Decimal("2.50"))).total()
    assert (total.engine_ns, total.cost_nanodollars, total.revenue_nanodollars) == (3 * HOUR + 3, 7_500_000_000, 4)
    unpriced = await cost_view(usage, *span, None)
    assert unpriced.total().engine_ns == 3 * HOUR + 3
    assert {(row.cost_nanodollars, row.margin_nanodollars) for row in unpriced.rows} == {(None, None)}
    with pytest.raises(InvalidAmount):
        await cost_view(usage, *span, Decimal("0.0000000001"))
