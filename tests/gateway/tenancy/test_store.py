"""One contract, on SQLite and on PostgreSQL."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy import (
    InvalidName,
    Principal,
    StoreUnavailable,
    TenantExists,
    UnknownKey,
    UnknownTenant,
    open_database,
)
from gateway.tenancy.keys import parse_key
from gateway.tenancy.tables import KeyRow, TenantRow
from tests.support.tenants import PEPPER
from tests.support.writers import TenantWriter


async def test_tenants_are_listed_by_name(store: TenantWriter) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    await store.create_tenant("zeta", "standard")
    acme = await store.create_tenant("acme", "premium")
    tenants = await store.list_tenants()
    assert [(tenant.name, tenant.tier) for tenant in tenants] == [("acme", "premium"), ("zeta", "standard")]
    assert tenants[0] == acme
    assert before <= acme.created_at <= datetime.now(UTC)
    assert acme.created_at.tzinfo is UTC


async def test_a_name_is_taken_once(store: TenantWriter) -> None:
    await store.create_tenant("acme", "premium")
    with pytest.raises(TenantExists, match="acme"):
        await store.create_tenant("acme", "standard")
    assert len(await store.list_tenants()) == 1


async def test_of_many_at_once_one_gets_the_name(store: TenantWriter) -> None:
    made = await asyncio.gather(*(store.create_tenant("acme", "standard") for _ in range(8)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in made) == ["Tenant"] + ["TenantExists"] * 7


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "é", "a" * 65, "a\n", "a'; DROP TABLE tenants", "\0"])
async def test_odd_names_are_refused(sqlite_url: str, name: str) -> None:
    database = open_database(sqlite_url)
    with pytest.raises(InvalidName):
        await TenantWriter(database, PEPPER).create_tenant(name, "standard")
    await database.dispose()


async def test_a_key_opens_for_its_tenant(store: TenantWriter) -> None:
    tenant = await store.create_tenant("acme", "premium")
    created = await store.create_key("acme", "laptop")
    found = await store.active_keys([created.record.public_id, "000000000000"])
    assert list(found) == [created.record.public_id]
    active = found[created.record.public_id]
    assert active.digest == parse_key(created.plaintext).digest(PEPPER)
    assert (active.principal.tenant_id, active.principal.tenant_name) == (tenant.id, "acme")
    assert (active.principal.tier, active.principal.key_id) == ("premium", created.record.public_id)
    assert await store.active_keys([]) == {}


async def test_a_revoked_key_names_its_tenant(store: TenantWriter) -> None:
    tenant = await store.create_tenant("acme", "premium")
    created, other = await store.create_key("acme", "laptop"), await store.create_key("acme", "kept")
    await store.revoke_key(created.record.public_id)
    asked = [created.record.public_id, other.record.public_id, "000000000000"]
    found = await store.revoked_keys(asked)
    assert list(found) == [created.record.public_id]
    revoked = found[created.record.public_id]
    assert revoked.digest == parse_key(created.plaintext).digest(PEPPER)
    assert revoked.owner == Principal(tenant.id, "acme", "premium", created.record.public_id)
    assert await store.revoked_keys([]) == {}


async def test_the_plaintext_is_nowhere_in_the_database(store: TenantWriter, database: AsyncEngine) -> None:
    await store.create_tenant("acme", "premium")
    created = await store.create_key("acme")
    secret = created.plaintext.rpartition("-")[2]
    async with database.connect() as connection:
        row = (await connection.execute(select(*KeyRow.__table__.columns))).one()
    for value in row:
        shown = value.hex() if isinstance(value, bytes) else str(value)
        assert secret not in shown
        assert secret.encode().hex() not in shown
    assert secret not in repr(created)
    assert secret not in repr(await store.list_keys())


async def test_keys_are_listed_with_the_revoked_ones(store: TenantWriter) -> None:
    for name in ("acme", "zeta"):
        await store.create_tenant(name, "standard")
    first = (await store.create_key("acme", "first")).record
    second = (await store.create_key("acme", "second")).record
    other = (await store.create_key("zeta")).record
    revoked = await store.revoke_key(first.public_id)
    assert await store.list_keys() == (revoked, second, other)
    assert await store.list_keys("zeta") == (other,)
    with pytest.raises(UnknownTenant):
        await store.list_keys("nobody")


async def test_revoking_is_for_good_and_keeps_the_first_time(store: TenantWriter) -> None:
    await store.create_tenant("acme", "standard")
    key = (await store.create_key("acme")).record
    revoked = await store.revoke_key(key.public_id)
    assert revoked.revoked_at.tzinfo is UTC
    assert await store.active_keys([key.public_id]) == {}
    assert await store.revoke_key(key.public_id) == revoked
    with pytest.raises(UnknownKey):
        await store.revoke_key("000000000000")


async def test_a_key_needs_a_tenant_and_a_printable_name(store: TenantWriter) -> None:
    with pytest.raises(UnknownTenant, match="nobody"):
        await store.create_key("nobody")
    await store.create_tenant("acme", "standard")
    for name in ("a" * 129, "a\nb", "\0"):
        with pytest.raises(InvalidName):
            await store.create_key("acme", name)
    assert await store.list_keys() == ()


async def test_a_disabled_tenants_keys_are_marked(store: TenantWriter, database: AsyncEngine) -> None:
    await store.create_tenant("acme", "standard")
    key = (await store.create_key("acme")).record
    async with database.begin() as connection:
        await connection.execute(update(TenantRow).values(disabled_at=datetime.now(UTC)))
    [known] = (await store.active_keys([key.public_id])).values()
    assert known.is_suspended


async def test_keys_of_another_pepper_are_counted(store: TenantWriter, database: AsyncEngine) -> None:
    await store.create_tenant("acme", "standard")
    await store.create_key("acme")
    revoked = await store.create_key("acme")
    await store.revoke_key(revoked.record.public_id)
    assert await store.count_keys_of_other_peppers() == 0
    assert await TenantWriter(database, b"x" * 32).count_keys_of_other_peppers() == 1


async def test_instants_keep_their_zone(database: AsyncEngine) -> None:
    noon_in_tokyo = datetime(2026, 1, 2, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=9)))
    store = TenantWriter(database, PEPPER, now=lambda: noon_in_tokyo)
    await store.create_tenant("acme", "standard")
    (tenant,) = await store.list_tenants()
    assert tenant.created_at == noon_in_tokyo
    assert tenant.created_at.tzinfo is UTC


async def test_a_database_without_tables_is_unavailable(empty_database_url: str) -> None:
    database = open_database(empty_database_url)
    store = TenantWriter(database, PEPPER)
    with pytest.raises(StoreUnavailable):
        await store.list_tenants()
    with pytest.raises(StoreUnavailable):
        await store.active_keys(["000000000000"])
    await database.dispose()


async def test_errors_hold_no_values(store: TenantWriter, database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await connection.execute(text("DROP TABLE api_keys"))
    with pytest.raises(StoreUnavailable) as failure:
        await store.revoke_key("secretsecret")
    chain = [failure.value, failure.value.__cause__]
    assert all("secretsecret" not in str(each) for each in chain)
