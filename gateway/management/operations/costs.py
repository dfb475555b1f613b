"""Costs and revenue of engine time, and reconciliation of the journal, the store and the invoices."""

import dataclasses
import sqlite3
from typing import Any

from gateway.analytics.sums import TimeRange
from gateway.billing.analytics_usage import AnalyticsUsage
from gateway.billing.cost_view import CostRow, cost_view
from gateway.billing.invoicing import invoiced_reader
from gateway.common.timestamps import unix_ms, utc_from_ms
from gateway.management.operations.context import AdminContext
from gateway.management.operations.errors import unavailable
from gateway.management.operations.roles import READERS
from gateway.management.operations.routes import OperationInput, Routes
from gateway.management.operations.schema import (
    Anything,
    Boolean,
    Instant,
    Integer,
    Kind,
    ListOf,
    Member,
    Text,
    answer,
    nullable,
)
from gateway.management.operations.timestamps import instant
from gateway.management.operations.usage import WINDOW_QUERY, window_of
from gateway.management.operations.wire import money, money_members
from gateway.metering.reconciliation.reconciliation import Reconciliation, reconcile

MAX_ROWS = 100_000
_AMOUNT = Integer(0, 2**63 - 1)

_COST_MEMBERS: dict[str, Member | Kind] = {
    "tier": Text(64, 0),
    "tenant_id": nullable(Text(255), "Null: work of others that this class caused to be repeated."),
    "engine_ns": _AMOUNT,
}
_COST_ROW = answer(
    "CostRow",
    _COST_MEMBERS
    | money_members("cost", known=False)
    | money_members("revenue")
    | money_members("margin", known=False),
)
COSTS = answer("Costs", {"start": Instant(), "end": Instant(), "data": ListOf(_COST_ROW, MAX_ROWS)})

_SUMS_MEMBERS: dict[str, Member | Kind] = {
    "events": _AMOUNT,
    "prompt_tokens": _AMOUNT,
    "completion_tokens": _AMOUNT,
}
_SUMS = answer("ReconciledSums", _SUMS_MEMBERS | money_members("cost"))
_FINDINGS = (
    *("missing", "doubled", "altered", "unauthenticated", "unknown_sources", "copies"),
    *("missing_ranges", "hours", "months", "late"),
)
RECONCILIATION = answer(
    "Reconciliation",
    {
        "source": Member(Text(255), "The journal that was compared."),
        "start": Instant(),
        "end": Instant(),
        "drift": Member(Boolean(), "Whether any event is missing, duplicated, altered or not signed by a gateway."),
        "former_rows": Member(_AMOUNT, "Rows without a signature, from before signatures were introduced."),
        **dict.fromkeys(("journal", "stored", "pending"), _SUMS),
        **{name: ListOf(Anything(), MAX_ROWS) for name in _FINDINGS},
    },
)


ROUTES = Routes()


@ROUTES.get("/costs", READERS, COSTS, query=WINDOW_QUERY)
async def read_costs(context: AdminContext, call: OperationInput) -> Any:
    """Read the cost and revenue of engine time, by class and tenant."""
    start, end = window_of(call.query, context.now())
    usage = AnalyticsUsage(context.analytics)
    view = await cost_view(usage, start, end, context.gpu_hour_dollars)
    return {"start": instant(start), "end": instant(end), "data": [_cost(row) for row in view.rows]}


@ROUTES.get("/reconciliation", READERS, RECONCILIATION, query=WINDOW_QUERY)
async def read_reconciliation(context: AdminContext, call: OperationInput) -> Any:
    """Compare this gateway's journal with the store of usage, hour by hour and event by event, and verify the
    signatures of what other gateways stored."""
    now = context.now()
    start, end = window_of(call.query, now)
    window = TimeRange(unix_ms(start), unix_ms(end))
    try:
        found = await reconcile(
            context.journal_path,
            context.analytics,
            window,
            context.signatures,
            now_ms=unix_ms(now),
            invoiced=invoiced_reader(context.database),
        )
    except sqlite3.Error:
        raise unavailable("The journal cannot be read.") from None
    return _reconciled(found)


def _cost(row: CostRow) -> dict[str, Any]:
    return {
        "tier": row.tier,
        "tenant_id": row.tenant_id,
        "engine_ns": row.engine_ns,
        **money("cost", row.cost_nanodollars),
        **money("revenue", row.revenue_nanodollars),
        **money("margin", row.margin_nanodollars),
    }


def _reconciled(found: Reconciliation) -> dict[str, Any]:
    return {
        "source": found.source,
        "start": instant(utc_from_ms(found.window.start_ms)),
        "end": instant(utc_from_ms(found.window.end_ms)),
        "drift": found.drift,
        "former_rows": found.former_rows,
        **{name: _sums(getattr(found, name)) for name in ("journal", "stored", "pending")},
        **{name: [dataclasses.asdict(each) for each in getattr(found, name)] for name in _FINDINGS},
    }


def _sums(total: Any) -> dict[str, Any]:
    return {name: getattr(total, name) for name in _SUMS_MEMBERS} | money("cost", total.cost_nanodollars)
