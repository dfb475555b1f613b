"""The operator's view of cost and revenue: engine time by class and tenant.

The nanoseconds of all rows add up to the engine time of all events. Recomputation after a preemption is on the row of
the class that caused it, without a tenant: the preempted tenant does not pay for it.
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
    """One tenant's requests in one class. `tenant_id` None: recomputation that the class caused. `cost_nanodollars`
    None: the price of a GPU-hour is unknown."""

    tier: str
    tenant_id: str | None
    engine_ns: int
    cost_nanodollars: int | None
    revenue_nanodollars: int

    @property
    def margin_nanodollars(self) -> int | None:
        """Revenue minus cost; None: the cost is unknown."""
        return None if self.cost_nanodollars is None else self.revenue_nanodollars - self.cost_nanodollars


@dataclass(frozen=True, slots=True)
class CostView:
    """Rows by class and tenant. Their rounded costs add up to the cost of all engine time."""

    rows: tuple[CostRow, ...]

    def by_tier(self) -> tuple[CostRow, ...]:
        """One row per class: its tenants and the recomputation that it caused. `tenant_id` is None in each."""
        return tuple(
            _sum(tier, None, [row for row in self.rows if row.tier == tier])
            for tier in sorted({row.tier for row in self.rows})
        )

    def by_tenant(self) -> tuple[CostRow, ...]:
        """One row per tenant over all classes (`tier` is empty), and one with `tenant_id` None for all
        recomputation."""
        tenants = sorted({row.tenant_id for row in self.rows}, key=lambda tenant_id: tenant_id or "")
        return tuple(
            _sum("", tenant_id, [row for row in self.rows if row.tenant_id == tenant_id]) for tenant_id in tenants
        )

    def total(self) -> CostRow:
        """The sum of all rows."""
        return _sum("", None, self.rows)


async def cost_view(times: EngineTimes, start: datetime, end: datetime, gpu_hour_dollars: Decimal | None) -> CostView:
    """The view of the events in [start, end). `gpu_hour_dollars`: price of an hour of the device that runs the steps.

    Raises:
        AnalyticsAway: the usage cannot be read.
        InvalidAmount: the price is not whole nanodollars.
    """
    hour = None if gpu_hour_dollars is None else parse_dollars(f"{gpu_hour_dollars:f}")
    return divide_costs(await times.engine_times(start, end), hour)


def divide_costs(times: Iterable[EngineTime], nanodollars_per_hour: int | None) -> CostView:
    """Divide the cost of all engine time among rows in order of class and tenant. Each row is within a nanodollar of
    its exact share."""
    own_ns: Counter[tuple[str, str]] = Counter()
    repeated_ns: Counter[tuple[str, str]] = Counter()
    revenue: Counter[tuple[str, str]] = Counter()
    for time in times:
        own_ns[time.tier_served, time.tenant_id] += time.engine_ns
        revenue[time.tier_served, time.tenant_id] += time.revenue_nanodollars
        for tier, ns in time.recompute_ns.items():
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
    """Cost of the engine time, rounded down."""
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
