"""Writes of tests to the SQL store: as the operations of management write, without an audit entry."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.billing.books import find_tenant, lock_books
from gateway.billing.credit import CreditEntry, CreditStore, add_entry
from gateway.billing.invoices import CreditNote, Invoice, InvoiceStatus
from gateway.billing.invoicing import (
    InvoiceStore,
    Invoicing,
    credit_invoice,
    find_final,
    find_invoice,
    make_invoice,
    settle_invoice,
)
from gateway.billing.month import Month
from gateway.billing.price_store import PriceStore, add_version, declare_versions
from gateway.billing.prices import PriceTerms, PriceVersion
from gateway.billing.terms import NO_TERMS, InvoiceTerms
from gateway.billing.usage import UsageTotals
from gateway.tenancy import CreatedKey, KeyGrant, KeyRecord, LimitRecord, ScopeKind, Tenant, TenantChanges, TenantStore
from gateway.tenancy.database import writing
from gateway.tenancy.limits import LimitTable, check_limits, limit_scope, write_limits
from gateway.tenancy.policies import POLICY_TABLES, RoutingPolicy
from gateway.tenancy.queries import tenant_id_of
from gateway.tenancy.records import Tier

Now = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def writing_books(database: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    async with writing(database) as connection:
        await lock_books(connection)
        yield connection


class TenantWriter(TenantStore):
    def __init__(self, database: AsyncEngine, pepper: bytes, *, now: Now = utc_now) -> None:
        super().__init__(database, pepper)
        self.database, self.pepper, self.now = database, pepper, now

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[TenantChanges]:
        async with writing(self.database) as connection:
            yield TenantChanges(connection, self.pepper, self.now)

    async def create_tenant(self, name: str, tier: Tier) -> Tenant:
        async with self.changing() as changes:
            return await changes.create_tenant(name, tier)

    async def create_key(self, tenant_name: str, name: str = "") -> CreatedKey:
        async with self.changing() as changes:
            return await changes.create_key(await changes.tenant_named(tenant_name), KeyGrant(name))

    async def revoke_key(self, public_id: str) -> KeyRecord:
        async with self.changing() as changes:
            return await changes.revoke_key(await changes.key(public_id))


class LimitWriter(LimitTable):
    def __init__(self, database: AsyncEngine) -> None:
        super().__init__(database)
        self.database = database

    async def set_limits(
        self, tenant_name: str, kind: ScopeKind, scope_id: str, changes: Mapping[str, int | None]
    ) -> LimitRecord:
        check_limits(changes)
        async with writing(self.database) as connection:
            tenant_id = await tenant_id_of(connection, tenant_name, lock=True)
            scope = await limit_scope(connection, tenant_id, kind, scope_id)
            await write_limits(connection, tenant_id, scope, changes)
        here = tenant_name, kind, scope.id
        return next(each for each in await self.list_limits() if (each.tenant_name, each.kind, each.scope_id) == here)


class RoutingPolicyWriter:
    def __init__(self, database: AsyncEngine) -> None:
        self.database = database

    async def policy_of(self, tenant_name: str) -> RoutingPolicy:
        async with self.database.connect() as connection:
            tenant_id = await tenant_id_of(connection, tenant_name)
            policy: RoutingPolicy = await POLICY_TABLES["routing"].read(connection, tenant_id)
        return policy

    async def change(self, tenant_name: str, alter: Callable[[RoutingPolicy], RoutingPolicy]) -> RoutingPolicy:
        async with writing(self.database) as connection:
            tenant_id = await tenant_id_of(connection, tenant_name, lock=True)
            policy = alter(await POLICY_TABLES["routing"].read(connection, tenant_id))
            await POLICY_TABLES["routing"].write(connection, tenant_id, policy)
        return policy


class PriceWriter(PriceStore):
    def __init__(self, database: AsyncEngine, *, now: Now = utc_now) -> None:
        super().__init__(database)
        self.database, self.now = database, now

    async def add(self, terms: PriceTerms, effective_from: datetime | None = None) -> PriceVersion:
        async with writing_books(self.database) as connection:
            return await add_version(connection, terms, effective_from, self.now())

    async def declare(self, prices: Mapping[str, Sequence[Decimal]]) -> tuple[PriceVersion, ...]:
        async with writing_books(self.database) as connection:
            return await declare_versions(connection, prices, self.now())


class CreditWriter(CreditStore):
    def __init__(self, database: AsyncEngine, *, now: Now = utc_now) -> None:
        super().__init__(database)
        self.database, self.now = database, now

    async def add(self, tenant_name: str, amount_nanodollars: int, reason: str, idempotency_key: str) -> CreditEntry:
        async with writing_books(self.database) as connection:
            tenant = await find_tenant(connection, tenant_name)
            return await add_entry(connection, tenant.id, amount_nanodollars, reason, idempotency_key, self.now())


class InvoiceWriter(InvoiceStore):
    def __init__(self, database: AsyncEngine, *, now: Now = utc_now) -> None:
        super().__init__(database)
        self.database, self.now = database, now

    async def credit(self, number: str, amount_nanodollars: int, reason: str, *, line: int | None = None) -> CreditNote:
        async with writing_books(self.database) as connection:
            return await credit_invoice(connection, number, amount_nanodollars, reason, line, self.now())

    async def settle(self, number: str, status: InvoiceStatus, note: str) -> Invoice:
        async with writing_books(self.database) as connection:
            invoice = await find_invoice(connection, number)
            return await settle_invoice(connection, invoice, status, note, self.now())


class InvoicingWriter(Invoicing):
    def __init__(
        self,
        database: AsyncEngine,
        usage: UsageTotals,
        *,
        grace_s: int,
        terms: InvoiceTerms = NO_TERMS,
        now: Now = utc_now,
    ) -> None:
        super().__init__(database, usage, grace_s=grace_s, terms=terms, now=now)
        self.database, self.now = database, now

    async def finalise(self, tenant_name: str, month: Month) -> Invoice | None:
        ready = await self.prepare(tenant_name, month)
        if isinstance(ready, Invoice):
            return ready
        async with writing_books(self.database) as connection:
            return await find_final(connection, ready) or await make_invoice(connection, ready, self.now())
