"""Limits, on SQLite and on PostgreSQL."""

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy import InvalidLimit, Limits, ScopedLimits, ScopeKind, UnknownKey, UnknownTenant
from tests.support.writers import LimitWriter, TenantWriter


@pytest.fixture
def table(database: AsyncEngine) -> LimitWriter:
    return LimitWriter(database)


async def test_limits_change_one_by_one(store: TenantWriter, table: LimitWriter) -> None:
    await store.create_tenant("acme", "premium")
    await table.set_limits("acme", ScopeKind.TENANT, "", {"concurrent": 3, "tokens_per_day": 10})
    record = await table.set_limits("acme", ScopeKind.TENANT, "", {"concurrent": None, "requests_per_minute": 0})
    assert (record.concurrent, record.requests_per_minute, record.tokens_per_day) == (None, 0, 10)
    assert await table.list_limits() == (record,)


async def test_a_principal_comes_with_its_limits(store: TenantWriter, table: LimitWriter) -> None:
    for name in ("acme", "other"):
        await store.create_tenant(name, "premium")
    mine, sibling, other = [(await store.create_key(name)).record.public_id for name in ("acme", "acme", "other")]
    most = 2**53 - 1
    await table.set_limits("acme", ScopeKind.KEY, mine, {"nanodollars_per_month": most})
    await table.set_limits("acme", ScopeKind.KEY, sibling, {"concurrent": 2})
    await table.set_limits("acme", ScopeKind.TENANT, "", {"concurrent": 3})
    await table.set_limits("acme", ScopeKind.MODEL, "qwen", {"context_tokens": 4})
    found = await store.active_keys([mine, other])
    assert set(found[mine].principal.limits) == {
        ScopedLimits(ScopeKind.KEY, mine, Limits(nanodollars_per_month=most)),
        ScopedLimits(ScopeKind.TENANT, "", Limits(concurrent=3)),
        ScopedLimits(ScopeKind.MODEL, "qwen", Limits(context_tokens=4)),
    }
    assert found[other].principal.limits == ()


async def test_refusals(store: TenantWriter, table: LimitWriter) -> None:
    await store.create_tenant("acme", "premium")
    await store.create_tenant("other", "premium")
    theirs = (await store.create_key("other")).record.public_id
    with pytest.raises(UnknownTenant, match="nobody"):
        await table.set_limits("nobody", ScopeKind.TENANT, "", {"concurrent": 3})
    with pytest.raises(UnknownKey):
        await table.set_limits("acme", ScopeKind.KEY, theirs, {"concurrent": 3})
    for changes in ({"concurrent": -1}, {"concurrent": 2**53}, {"speed": 1}):
        with pytest.raises(InvalidLimit):
            await table.set_limits("acme", ScopeKind.TENANT, "", changes)
    for model in ("", "a" * 129, "a\n"):
        with pytest.raises(InvalidLimit):
            await table.set_limits("acme", ScopeKind.MODEL, model, {"concurrent": 3})
    assert await table.list_limits() == ()


async def test_many_at_once_all_take_effect(store: TenantWriter, table: LimitWriter) -> None:
    await store.create_tenant("acme", "premium")
    names = ["concurrent", "tokens_per_day", "tokens_per_minute", "requests_per_minute"]
    await asyncio.gather(*(table.set_limits("acme", ScopeKind.TENANT, "", {name: 7}) for name in names))
    (record,) = await table.list_limits()
    assert [getattr(record, name) for name in names] == [7] * 4
