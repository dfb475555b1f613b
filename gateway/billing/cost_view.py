"""The operator's view: engine time, what it cost, and what it brought in, by class and tenant.

The nanoseconds of all rows add up to the engine time of all events. Work that was repeated after a preemption is on the
row of the class that caused it, without a tenant: the one who was preempted neither asked for it nor pays for it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from gateway.billing.money import parse_dollars
from gateway.billing.usage import EngineTime, EngineTimes

NS_PER_HOUR = 3600 * 10**9


@dataclass(frozen=True, slots=True)
class CostRow:
    """A tenant's requests in one class; or, with `tenant_id` None, what that class made others repeat.
    `cost_nanodollars` is None where the price of a GPU-hour is not known."""

    tier: str
    tenant_id: str | None
    engine_ns: int
    cost_nanodollars: int | None
    revenue_nanodollars: int

    @property
    def margin_nanodollars(self) -> int | None:
        return None if self.cost_nanodollars is None else self.revenue_nanodollars - self.cost_nanodollars


@dataclass(frozen=True, slots=True)
class CostView:
    """Rows by class and tenant. Costs add up to that of all engine time, whatever they were rounded to."""

    rows: tuple[CostRow, ...]

    def by_tier(self) -> tuple[CostRow, ...]:
        """A row for each class: its tenants' and what it made others repeat. `tenant_id` is None in each."""
        return tuple(
            _sum(tier, None, [row for row in self.rows if row.tier == tier])
            for tier in sorted({row.tier for row in self.rows})
        )

    def by_tenant(self) -> tuple[CostRow, ...]:
        """A row for each tenant over all classes (`tier` is empty); one with None for all that was repeated."""
        tenants = sorted({row.tenant_id for row in self.rows}, key=lambda tenant_id: tenant_id or "")
        return tuple(_sum("", each, [row for row in self.rows if row.tenant_id == each]) for each in tenants)

    def total(self) -> CostRow:
        return _sum("", None, self.rows)


async def cost_view(times: EngineTimes, start: datetime, end: datetime, gpu_hour_dollars: Decimal | None) -> CostView:
    """Of the events in [start, end). `gpu_hour_dollars` is what an hour of the device that steps costs.

    Raises:
        AnalyticsAway: the usage cannot be read.
        InvalidAmount: the price is not whole nanodollars.
    """
    hour = None if gpu_hour_dollars is None else parse_dollars(f"{gpu_hour_dollars:f}")
    return divide_costs(await times.engine_times(start, end), hour)


def divide_costs(times: Iterable[EngineTime], nanodollars_per_hour: int | None) -> CostView:
    """Rows in order of class and tenant, each at less than a nanodollar from its share of the whole cost."""
    own_ns: Counter[tuple[str, str]] = Counter()
    repeated_ns: Counter[tuple[str, str]] = Counter()
    revenue: Counter[tuple[str, str]] = Counter()
    for each in times:
        own_ns[each.tier_served, each.tenant_id] += each.engine_ns
        revenue[each.tier_served, each.tenant_id] += each.revenue_nanodollars
        for tier, ns in each.recompute_ns.items():
            repeated_ns[tier, ""] += ns
    rows = []
    so_far_ns = 0
    for (tier, tenant_id), ns in sorted([*own_ns.items(), *repeated_ns.items()]):
        cost = None
        if nanodollars_per_hour is not None:
            cost = _cost(so_far_ns + ns, nanodollars_per_hour) - _cost(so_far_ns, nanodollars_per_hour)
        so_far_ns += ns
        rows.append(CostRow(tier, tenant_id or None, ns, cost, revenue[tier, tenant_id]))
    return CostView(tuple(rows))


def _cost(engine_ns: int, nanodollars_per_hour: int) -> int:
    """Rounded down."""
    return engine_ns * nanodollars_per_hour // NS_PER_HOUR


def _sum(tier: str, tenant_id: str | None, rows: Iterable[CostRow]) -> CostRow:
    rows = tuple(rows)
    costs = [row.cost_nanodollars for row in rows if row.cost_nanodollars is not None]
    return CostRow(
        tier,
        tenant_id,
        sum(row.engine_ns for row in rows),
        sum(costs) if len(costs) == len(rows) else None,
        sum(row.revenue_nanodollars for row in rows),
    )
