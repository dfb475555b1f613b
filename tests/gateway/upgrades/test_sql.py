"""The SQL store of each former revision, filled, comes up to date with all that is in it, and means what it meant."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

import migrations
from gateway.adapters.limits import ADAPTER_LIMITS, AdapterLimits
from gateway.adapters.queries import AdapterStore, kept_digests
from gateway.billing.credit import CreditStore
from gateway.billing.invoice_rows import find_invoices
from gateway.billing.price_store import PriceStore
from gateway.billing.prices import Price
from gateway.billing.terms import NO_TERMS
from gateway.common.party import Party
from gateway.management.operations.admin_keys import AdminKeyStore
from gateway.management.operations.audit import AuditLog
from gateway.management.operations.roles import Role
from gateway.sessions.policy import SessionWindow
from gateway.tenancy import Authenticator, InvalidKey, TenantStore, open_database
from gateway.tenancy.keys import ADMIN_PREFIX, parse_key
from gateway.tenancy.limits import LimitTable
from gateway.tenancy.policies import (
    NO_POLICIES,
    Preference,
    RoutingPolicy,
    SessionPolicy,
    TenantPolicies,
    read_policies,
)
from gateway.tenancy.records import Principal
from gateway.tenancy.schema import alembic_config, in_locked_transaction, upgrade
from tests.gateway.upgrades.former_rows import (
    ACME,
    ADMIN_KEY,
    BILL_TO,
    INVOICE,
    ISSUER,
    KEY,
    PEPPER,
    PRICE,
    REVOKED_KEY,
    ROWS,
    SUSPENDED_KEY,
    fill,
)

REVISIONS = [f"{number:04}" for number in range(1, int(migrations.HEAD) + 1)]


def test_every_revision_is_tried() -> None:
    script = ScriptDirectory(str(next(iter(migrations.__path__))))
    assert sorted(each.revision for each in script.walk_revisions()) == REVISIONS


@pytest.mark.parametrize("revision", REVISIONS)
async def test_what_a_former_version_wrote_means_the_same(revision: str, empty_database_url: str) -> None:
    filled: set[str] = set()

    def at_revision(connection: Connection) -> None:
        command.upgrade(alembic_config(connection), revision)
        filled.update(fill(connection))

    await in_locked_transaction(empty_database_url, at_revision)
    await upgrade(empty_database_url)
    database = open_database(empty_database_url)
    try:
        await _nothing_is_gone(database, filled)
        await _keys_open(database, filled)
        if "limits" in filled:
            await _limits_hold(database)
        if "invoices" in filled:
            await _books_agree(database, with_terms="invoice_settlements" in filled)
        if "audit_log" in filled:
            await _administrators_are_known(database)
        await _tenants_wishes_are_known(database, filled)
        if "adapters" in filled:
            await _adapters_are_served(database)
    finally:
        await database.dispose()


async def _nothing_is_gone(database: AsyncEngine, filled: set[str]) -> None:
    async with database.connect() as connection:
        for table in filled:
            [count] = (await connection.execute(text(f"SELECT count(*) FROM {table}"))).one()
            assert count == len(ROWS[table]), table


async def _keys_open(database: AsyncEngine, filled: set[str]) -> None:
    authenticator: Authenticator[Principal] = Authenticator(TenantStore(database, PEPPER), PEPPER)
    try:
        caller = await authenticator.authenticate(KEY)
        assert (caller.tenant_id, caller.tenant_name, caller.tier) == (ACME, "acme", "premium")
        assert caller.lineage == caller.key_id == "acmekey00001"
        assert caller.scopes is caller.models is None, "a key of before grants may do all"
        for closed in (REVOKED_KEY, SUSPENDED_KEY, KEY[:-1] + "8"):
            with pytest.raises(InvalidKey):
                await authenticator.authenticate(closed)
    finally:
        await authenticator.aclose()


async def _limits_hold(database: AsyncEngine) -> None:
    [caller] = (await TenantStore(database, PEPPER).active_keys(["acmekey00001"])).values()
    bounds = {(each.kind.value, each.scope_id): each.limits for each in caller.principal.limits}
    assert bounds["tenant", ""].requests_per_minute == 60
    assert bounds["key", "acmekey00001"].tokens_per_day == 10**12
    assert bounds["model", "smollm2"].concurrent == 3
    assert len(await LimitTable(database).list_limits()) == 3


async def _books_agree(database: AsyncEngine, *, with_terms: bool) -> None:
    [version] = await PriceStore(database).versions()
    assert version.terms.multipliers == {"premium": Decimal("2.5")}
    assert version.price("premium") == Price(PRICE, 250, 125, 1000)
    assert version.price("standard") == Price(PRICE, 100, 50, 400)
    async with database.connect() as connection:
        [invoice] = await find_invoices(connection)
    assert (invoice.number, invoice.statement.total_nanodollars) == (INVOICE, 1_287_500)
    assert invoice.statement.digest == f"{0xFF:032x}"
    assert invoice.due_nanodollars == 1_282_500
    if with_terms:
        assert (invoice.terms.issuer, invoice.terms.bill_to) == (Party(**ISSUER), Party(**BILL_TO))
        assert (invoice.due_date, invoice.terms.tax_rate, invoice.status) == (date(2026, 4, 1), 19_000, "paid")
    else:
        assert (invoice.terms, invoice.due_date, invoice.status) == (NO_TERMS, None, "open")
    for line in invoice.statement.lines:
        assert (line.key.adapter_id, line.key.price_version) == ("", PRICE)
        assert line.price == version.price(line.key.tier_served)
    assert await CreditStore(database).granted_nanodollars(ACME) == 5_000_000_000
    async with database.connect() as connection:
        with pytest.raises(DBAPIError, match="only added to"):
            await connection.execute(text("UPDATE invoices SET total_nanodollars = 0"))


async def _administrators_are_known(database: AsyncEngine) -> None:
    keys = AdminKeyStore(database, PEPPER)
    [administrator] = await keys.list_all()
    assert (administrator.name, administrator.role) == ("bookkeeper", Role.BILLING)
    [active] = (await keys.active_keys(["adminkey0001"])).values()
    assert active.digest == parse_key(ADMIN_KEY, ADMIN_PREFIX).digest(PEPPER)
    async with database.connect() as connection:
        assert await AuditLog(PEPPER).verify(connection) is None
        with pytest.raises(DBAPIError, match="append-only"):
            await connection.execute(text("DELETE FROM audit_log"))


async def _tenants_wishes_are_known(database: AsyncEngine, filled: set[str]) -> None:
    stated = RoutingPolicy(Preference.ECONOMY, True, False, 60, {"fast": "smollm2"})
    async with database.connect() as connection:
        found = (await read_policies(connection, [ACME])).get(ACME, NO_POLICIES)
    routing = stated if "routing_policies" in filled else RoutingPolicy()
    window = SessionWindow.SUMMARY if "session_windows" in filled else None
    assert found == TenantPolicies(routing, SessionPolicy(window))


async def _adapters_are_served(database: AsyncEngine) -> None:
    [adapter] = await AdapterStore(database).adapters()
    assert (adapter.id, adapter.model, adapter.price_multiplier) == ("support:aaaaaaaaaaaa", "smollm2", Decimal("1.5"))
    assert (adapter.serving, adapter.previous) == ({1: 90, 2: 10}, {1: 100})
    assert [version.digest for version in adapter.versions] == ["a" * 64, "b" * 64]
    async with database.connect() as connection:
        assert await ADAPTER_LIMITS.read(connection, ACME) == AdapterLimits(5, 2**40)
        assert await kept_digests(connection, datetime.now(UTC)) == {"a" * 64, "b" * 64}
