"""Suspending tenants; narrowing, rotating and ending keys. On SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy import Authenticator, InvalidKey, ScopeKind, Tenant, UnknownTenant
from gateway.tenancy.changes import MAX_OVERLAP, KeyGrant, TenantChanges
from gateway.tenancy.database import writing
from gateway.tenancy.errors import InvalidExpiry, InvalidGrant, KeyNotInUse, UnknownKey
from gateway.tenancy.grants import MAX_MODELS, KeyScope
from tests.support.tenants import PEPPER
from tests.support.writers import LimitWriter, TenantWriter

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Day:
    """The time of day, which only the test moves."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def day() -> Day:
    return Day()


@pytest.fixture
def store(database: AsyncEngine, day: Day) -> TenantWriter:
    return TenantWriter(database, PEPPER, now=day)


@pytest.fixture
async def tenant(store: TenantWriter, anyio_backend: str) -> Tenant:
    return await store.create_tenant("acme", "premium")


@pytest.fixture
async def authenticator(store: TenantWriter, day: Day, anyio_backend: str) -> AsyncIterator[Authenticator]:
    """On a clock that stands still: what it has read once, it keeps."""
    authenticator = Authenticator(store, PEPPER, clock=lambda: 0.0, now=day)
    yield authenticator
    await authenticator.aclose()


@pytest.fixture
def changing(database: AsyncEngine, day: Day):
    @asynccontextmanager
    async def changing() -> AsyncIterator[TenantChanges]:
        async with writing(database) as connection:
            yield TenantChanges(connection, PEPPER, day)

    return changing


async def test_a_suspended_tenants_keys_open_nothing_until_it_is_resumed(store, tenant, changing, day) -> None:
    key = (await store.create_key("acme")).record
    async with changing() as changes:
        suspended = await changes.suspend(await changes.tenant(tenant.id))
    assert suspended.disabled_at == NOON
    assert await store.list_tenants() == (suspended,)
    [known] = (await store.active_keys([key.public_id])).values()
    assert known.is_suspended
    day.now += timedelta(hours=1)
    async with changing() as changes:
        assert await changes.suspend(await changes.tenant(tenant.id)) == suspended
        assert await changes.resume(suspended) == tenant
    [known] = (await store.active_keys([key.public_id])).values()
    assert not known.is_suspended


async def test_a_tier_is_changed_for_the_keys_that_are_there(store, tenant, changing) -> None:
    key = (await store.create_key("acme")).record
    async with changing() as changes:
        await changes.set_tier(await changes.tenant(tenant.id), "standard")
    assert (await store.active_keys([key.public_id]))[key.public_id].principal.tier == "standard"


async def test_an_error_takes_back_the_whole_transaction(store, tenant, changing) -> None:
    with pytest.raises(UnknownKey):
        async with changing() as changes:
            await changes.suspend(await changes.tenant(tenant.id))
            await changes.key("000000000000")
    assert await store.list_tenants() == (tenant,)


async def test_what_is_not_there_cannot_be_changed(changing, tenant) -> None:
    async with changing() as changes:
        for find in (changes.tenant("none"), changes.tenant_named("none")):
            with pytest.raises(UnknownTenant):
                await find


async def test_a_key_may_do_what_it_was_made_for(store, tenant, changing) -> None:
    grant = KeyGrant("ci", scopes=["usage", "chat", "chat"], models=["b", "a", "b"])
    async with changing() as changes:
        created = await changes.create_key(tenant, grant)
    assert created.record.scopes == (KeyScope.CHAT, KeyScope.USAGE)
    assert created.record.models == ("a", "b")
    assert await store.list_keys() == (created.record,)
    principal = (await store.active_keys([created.record.public_id]))[created.record.public_id].principal
    assert [principal.may(scope) for scope in KeyScope] == [True, False, False, True]
    assert [principal.may_use(model) for model in ("a", "b", "c")] == [True, True, False]


async def test_a_key_without_grants_may_do_everything(store, tenant) -> None:
    key = (await store.create_key("acme")).record
    principal = (await store.active_keys([key.public_id]))[key.public_id].principal
    assert all(principal.may(scope) for scope in KeyScope)
    assert principal.may_use("any")


async def test_grants_are_changed_in_place(store, tenant, changing) -> None:
    key = (await store.create_key("acme")).record
    async with changing() as changes:
        narrowed = await changes.set_grants(await changes.key(key.public_id), ["embeddings"], ["e"])
    assert await store.list_keys() == (narrowed,)
    async with changing() as changes:
        assert await changes.set_grants(await changes.key(key.public_id), None, None) == key


@pytest.mark.parametrize(
    ("scopes", "models"),
    [
        ([], None),
        (["chat", "root"], None),
        (None, []),
        (None, ["a" * 129]),
        (None, ["a\n"]),
        (None, [""]),
        (None, [str(i) for i in range(MAX_MODELS + 1)]),
    ],
)
async def test_grants_that_cannot_be(store, tenant, changing, scopes, models) -> None:
    with pytest.raises(InvalidGrant):
        async with changing() as changes:
            await changes.create_key(tenant, KeyGrant(scopes=scopes, models=models))
    assert await store.list_keys() == ()


async def test_both_keys_of_a_rotation_open_until_the_overlap_ends(store, tenant, changing, authenticator, day) -> None:
    async with changing() as changes:
        old = await changes.create_key(tenant, KeyGrant("app", ["chat"], ["m"]))
        retired, new = await changes.rotate_key(old.record, NOON + timedelta(hours=1))
    assert (new.record.name, new.record.scopes, new.record.models) == ("app", (KeyScope.CHAT,), ("m",))
    assert (retired.expires_at, retired.rotated_to) == (NOON + timedelta(hours=1), new.record.public_id)
    assert set(await store.list_keys()) == {retired, new.record}
    for created in (old, new):
        assert (await authenticator.authenticate(created.plaintext)).key_id == created.record.public_id
    day.now = NOON + timedelta(hours=1, microseconds=-1)
    assert await authenticator.authenticate(old.plaintext)
    day.now += timedelta(microseconds=1)
    with pytest.raises(InvalidKey):
        await authenticator.authenticate(old.plaintext)
    assert await authenticator.authenticate(new.plaintext)


async def test_a_rotation_without_overlap_ends_the_old_key_now(store, tenant, changing, authenticator) -> None:
    old = await store.create_key("acme")
    async with changing() as changes:
        retired, _ = await changes.rotate_key(await changes.key(old.record.public_id), NOON - timedelta(days=1))
    assert retired.expires_at == NOON
    with pytest.raises(InvalidKey):
        await authenticator.authenticate(old.plaintext)


async def test_a_rotation_prolongs_nothing(tenant, changing) -> None:
    end = NOON + timedelta(minutes=5)
    async with changing() as changes:
        old = await changes.create_key(tenant, KeyGrant(expires_at=end))
        retired, new = await changes.rotate_key(old.record, NOON + timedelta(hours=1))
    assert (retired.expires_at, new.record.expires_at) == (end, end)


async def test_only_a_key_in_use_is_rotated_and_only_once(tenant, changing, day) -> None:
    later = NOON + timedelta(hours=1)
    async with changing() as changes:
        expiring = (await changes.create_key(tenant, KeyGrant(expires_at=later))).record
        rotated, _ = await changes.rotate_key((await changes.create_key(tenant, KeyGrant())).record, later)
        revoked = await changes.revoke_key((await changes.create_key(tenant, KeyGrant())).record)
        day.now = later
        for key in (expiring, rotated, revoked):
            with pytest.raises(KeyNotInUse):
                await changes.rotate_key(key, later)


async def test_instants_that_cannot_be(tenant, changing) -> None:
    async with changing() as changes:
        with pytest.raises(InvalidExpiry):
            await changes.create_key(tenant, KeyGrant(expires_at=NOON))
        key = (await changes.create_key(tenant, KeyGrant())).record
        with pytest.raises(InvalidExpiry):
            await changes.rotate_key(key, NOON + MAX_OVERLAP + timedelta(seconds=1))


async def test_a_keys_limits_and_their_windows_outlive_its_rotations(store, tenant, changing, database) -> None:
    first = (await store.create_key("acme")).record
    other = (await store.create_key("acme")).record
    limits = LimitWriter(database)
    await limits.set_limits("acme", ScopeKind.KEY, first.public_id, {"requests_per_minute": 5})
    async with changing() as changes:
        _, second = await changes.rotate_key(first, NOON + timedelta(hours=1))
        _, third = await changes.rotate_key(second.record, NOON + timedelta(hours=1))
    await limits.set_limits("acme", ScopeKind.KEY, third.record.public_id, {"concurrent": 2})
    found = await store.active_keys([first.public_id, other.public_id, third.record.public_id])
    chain = [found[key.public_id].principal for key in (first, third.record)]
    assert [principal.lineage for principal in chain] == [first.public_id] * 2
    for principal in chain:
        [stated] = principal.limits
        assert (stated.scope_id, stated.limits.requests_per_minute, stated.limits.concurrent) == (first.public_id, 5, 2)
    assert found[other.public_id].principal.limits == ()
