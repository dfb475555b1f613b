"""Prepaid credit: grants, corrections, the balance, and the month's spending against its budget."""

import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from gateway.billing.analytics_usage import AnalyticsUsage
from gateway.billing.books import MAX_TEXT_CHARS, lock_books
from gateway.billing.credit import MAX_KEY_CHARS, CreditEntry, add_entry, balance_of, find_entry, read_credit
from gateway.billing.money import MAX_NANODOLLARS
from gateway.billing.month import Month
from gateway.billing.tables import CreditEntryRow
from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import PAGE_QUERY, Listing, page_of
from gateway.management.operations.roles import FINANCE, READERS
from gateway.management.operations.routes import PATH_KINDS, OperationInput, Routes
from gateway.management.operations.schema import Boolean, Instant, Integer, Kind, Member, Record, Text, answer, optional
from gateway.management.operations.timestamps import instant
from gateway.management.operations.wire import money, money_members
from gateway.tenancy.limits import Limits, ScopeKind, read_limits
from gateway.tenancy.queries import require_tenant

_BY_AGE = Listing("credit", (CreditEntryRow.created_at, CreditEntryRow.id))
_KEY = Text(MAX_KEY_CHARS)
_ENTRY_MEMBERS: dict[str, Member | Kind] = {
    "id": Text(36),
    "reason": Text(MAX_TEXT_CHARS),
    "created_at": Instant(),
    "idempotency_key": _KEY,
}
ENTRY = answer("CreditEntry", _ENTRY_MEMBERS | money_members("amount"))
_BALANCE_MEMBERS: dict[str, Member | Kind] = {
    "prepaid": Member(
        Boolean(),
        "Whether credit was ever granted. If not, credit is null. Spent is what came off it: the cost of requests "
        "admitted since the first entry.",
    ),
    "month": PATH_KINDS["month"],
}
BALANCE = answer(
    "Balance",
    _BALANCE_MEMBERS
    | money_members("granted", known=False)
    | money_members("spent", known=False)
    | money_members("left", known=False)
    | money_members("month_spent")
    | money_members("month_budget", known=False),
)


@dataclass(frozen=True, slots=True)
class Grant:
    nanodollars: int
    reason: str
    idempotency_key: str | None = None
    """The entry's, unique to the tenant. None: one is made up."""


ROUTES = Routes()
_ENTRIES = "/tenants/{tenant_id}/credit"


@ROUTES.get("/tenants/{tenant_id}/balance", READERS, BALANCE)
async def read_balance(context: AdminContext, call: OperationInput) -> Any:
    """Read a tenant's remaining credit, and its spending of this month against its budget."""
    tenant_id = call.path["tenant_id"]
    month = Month.of(context.now())
    async with context.reading() as connection:
        await require_tenant(connection, tenant_id)
        credit = (await read_credit(connection, [tenant_id])).get(tenant_id)
        stated = (await read_limits(connection, [tenant_id])).get(tenant_id, {})
    budget = stated.get(ScopeKind.TENANT, {}).get("", Limits()).nanodollars_per_month
    left = None if credit is None else await balance_of(tenant_id, credit, AnalyticsUsage(context.analytics))
    sums = (await AnalyticsUsage(context.analytics).totals(tenant_id, month.start, month.end)).values()
    return {
        "prepaid": left is not None,
        "month": str(month),
        **money("granted", None if left is None else left.granted_nanodollars),
        **money("spent", None if left is None else left.spent_nanodollars),
        **money("left", None if left is None else left.left_nanodollars),
        **money("month_spent", sum(each.cost_nanodollars for each in sums)),
        **money("month_budget", budget),
    }


@ROUTES.get(_ENTRIES, READERS, page_of("CreditPage", ENTRY), query=PAGE_QUERY)
async def list_credit(context: AdminContext, call: OperationInput) -> Any:
    """List a tenant's credit grants and corrections, by age."""
    tenant_id = call.path["tenant_id"]
    statement = select(*CreditEntryRow.__table__.columns).where(CreditEntryRow.tenant_id == tenant_id)
    query = {**call.query, "tenant_id": tenant_id}
    async with context.reading() as connection:
        await require_tenant(connection, tenant_id)
        return await _BY_AGE.page(connection, statement, query, context.cursors, _wire)


@ROUTES.write(
    "POST",
    _ENTRIES,
    FINANCE,
    ENTRY,
    body=Record(
        "Grant",
        Grant,
        {
            "nanodollars": Member(Integer(-MAX_NANODOLLARS, MAX_NANODOLLARS), "Not 0."),
            "reason": Member(Text(MAX_TEXT_CHARS)),
            "idempotency_key": optional(
                _KEY, "Of the entry, for good: another grant of the tenant with this key has no effect."
            ),
        },
    ),
    status=201,
)
async def grant_credit(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Grant credit; a negative amount is a correction. A tenant is prepaid from its first grant on."""
    body: Grant = call.body
    tenant = await context.tenants(change).tenant(call.path["tenant_id"])
    key = body.idempotency_key or f"admin-{uuid.uuid4()}"
    await lock_books(change.connection)
    known = await find_entry(change.connection, tenant.id, key)
    entry = await add_entry(change.connection, tenant.id, body.nanodollars, body.reason, key, change.at)
    wire = _wire(entry)
    before = None if known is None else wire
    return change.record("grant", "credit", entry.id, tenant_id=tenant.id, before=before, after=wire)


def _wire(entry: CreditEntry | Any) -> dict[str, Any]:
    return {
        "id": entry.id,
        "reason": entry.reason,
        "created_at": instant(entry.created_at),
        "idempotency_key": entry.idempotency_key,
        **money("amount", entry.amount_nanodollars),
    }
