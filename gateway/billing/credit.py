"""Prepaid credit: an append-only list of grants and corrections.

The balance is their sum minus the cost of the tenant's requests that were admitted since its first entry. Earlier use
is on invoices and is never deducted from credit. Admission, the admin API and a starting gateway all follow this rule.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.billing.books import check_text, find_tenant, reading
from gateway.billing.errors import IdempotencyConflict, InvalidAmount
from gateway.billing.money import MAX_NANODOLLARS, dollars
from gateway.billing.tables import CreditEntryRow
from gateway.billing.usage import UsageTotals
from gateway.common.ids import new_event_id

MAX_KEY_CHARS = 128


@dataclass(frozen=True, slots=True)
class CreditEntry:
    """A grant or, below 0, a correction. `idempotency_key`: the caller's key, unique to the tenant."""

    id: str
    tenant_id: str
    amount_nanodollars: int
    reason: str
    idempotency_key: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PrepaidCredit:
    """The sum of a tenant's entries. `since`: time of the first one; the cost of requests admitted from then on is
    deducted."""

    granted_nanodollars: int
    since: datetime


@dataclass(frozen=True, slots=True)
class CreditBalance:
    """The credit granted to a tenant in all, and the part of it that is spent."""

    granted_nanodollars: int
    spent_nanodollars: int

    @property
    def left_nanodollars(self) -> int:
        """The remaining credit; below 0 if more was spent than granted."""
        return self.granted_nanodollars - self.spent_nanodollars


class CreditStore:
    """Reads entries. Every method raises `StoreUnavailable` if the database does not answer."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def entries(self, tenant_name: str) -> tuple[CreditEntry, ...]:
        """A tenant's entries, oldest first.

        Raises:
            UnknownTenant: no such tenant.
        """
        async with reading(self._database) as connection:
            tenant = await find_tenant(connection, tenant_name)
            query = _ENTRIES.where(CreditEntryRow.tenant_id == tenant.id)
            rows = await connection.execute(query.order_by(CreditEntryRow.created_at, CreditEntryRow.id))
            return tuple(_entry(row) for row in rows.all())

    async def granted_nanodollars(self, tenant_id: str) -> int | None:
        """The sum of a tenant's entries, as admission uses it. None: the tenant is not prepaid."""
        async with reading(self._database) as connection:
            credit = (await read_credit(connection, [tenant_id])).get(tenant_id)
        return None if credit is None else credit.granted_nanodollars

    async def all_prepaid(self) -> Mapping[str, PrepaidCredit]:
        """The credit of every prepaid tenant, by tenant id."""
        async with reading(self._database) as connection:
            return await read_credit(connection)

    async def balance(self, tenant_name: str, usage: UsageTotals) -> CreditBalance | None:
        """A tenant's balance; None: the tenant is not prepaid.

        Raises:
            UnknownTenant: no such tenant.
            AnalyticsAway: the usage cannot be read.
        """
        async with reading(self._database) as connection:
            tenant = await find_tenant(connection, tenant_name)
            credit = (await read_credit(connection, [tenant.id])).get(tenant.id)
        return None if credit is None else await balance_of(tenant.id, credit, usage)


async def balance_of(tenant_id: str, credit: PrepaidCredit, usage: UsageTotals) -> CreditBalance:
    """The balance of a prepaid tenant. Raises AnalyticsAway."""
    return CreditBalance(credit.granted_nanodollars, await usage.spent_nanodollars(tenant_id, credit.since))


async def add_entry(
    connection: AsyncConnection,
    tenant_id: str,
    amount_nanodollars: int,
    reason: str,
    idempotency_key: str,
    now: datetime,
) -> CreditEntry:
    """Grant an amount, or correct by one below 0. A repetition with the same key, amount and reason changes nothing and
    returns the first entry. A tenant is prepaid from its first entry on. The caller has locked the books and checked
    that the tenant exists.

    Raises:
        InvalidAmount: the amount is 0, or the sum of all entries would be out of range.
        InvalidReason: the reason or the key is empty, too long or unprintable.
        IdempotencyConflict: the key belongs to another entry.
    """
    check_text("a reason", reason)
    check_text("an idempotency key", idempotency_key, MAX_KEY_CHARS)
    if amount_nanodollars == 0:
        raise InvalidAmount("an entry is for some amount")
    known = await find_entry(connection, tenant_id, idempotency_key)
    if known is not None:
        if (known.amount_nanodollars, known.reason) != (amount_nanodollars, reason):
            raise IdempotencyConflict("the idempotency key stands for another entry already")
        return known
    credit = (await read_credit(connection, [tenant_id])).get(tenant_id)
    granted = 0 if credit is None else credit.granted_nanodollars
    if abs(granted + amount_nanodollars) > MAX_NANODOLLARS:
        raise InvalidAmount(f"a tenant is granted at most {dollars(MAX_NANODOLLARS)} dollars in all")
    entry = CreditEntry(str(new_event_id()), tenant_id, amount_nanodollars, reason, idempotency_key, now)
    await connection.execute(insert(CreditEntryRow).values(_row(entry)))
    return entry


async def find_entry(connection: AsyncConnection, tenant_id: str, idempotency_key: str) -> CreditEntry | None:
    """The tenant's entry with an idempotency key; None: there is none."""
    here = CreditEntryRow.tenant_id == tenant_id, CreditEntryRow.idempotency_key == idempotency_key
    row = (await connection.execute(_ENTRIES.where(*here))).first()
    return None if row is None else _entry(row)


async def read_credit(
    connection: AsyncConnection, tenant_ids: Iterable[str] | None = None
) -> Mapping[str, PrepaidCredit]:
    """The credit of prepaid tenants, by tenant id. `tenant_ids`: only these tenants; None: all."""
    query = select(
        CreditEntryRow.tenant_id, func.sum(CreditEntryRow.amount_nanodollars), func.min(CreditEntryRow.created_at)
    ).group_by(CreditEntryRow.tenant_id)
    if tenant_ids is not None:
        query = query.where(CreditEntryRow.tenant_id.in_(tuple(tenant_ids)))
    # PostgreSQL sums integers to a decimal number, exactly.
    return {
        tenant_id: PrepaidCredit(int(granted), since) for tenant_id, granted, since in await connection.execute(query)
    }


def _entry(row: Row[*tuple[Any, ...]]) -> CreditEntry:
    return CreditEntry(*row)


def _row(entry: CreditEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "tenant_id": entry.tenant_id,
        "amount_nanodollars": entry.amount_nanodollars,
        "reason": entry.reason,
        "idempotency_key": entry.idempotency_key,
        "created_at": entry.created_at,
    }


_ENTRIES = select(
    CreditEntryRow.id,
    CreditEntryRow.tenant_id,
    CreditEntryRow.amount_nanodollars,
    CreditEntryRow.reason,
    CreditEntryRow.idempotency_key,
    CreditEntryRow.created_at,
)
