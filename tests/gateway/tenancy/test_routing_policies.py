"""Routing policies, on SQLite and on PostgreSQL."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy import UnknownTenant
from gateway.tenancy.policies import InvalidPolicy, Preference, RoutingPolicy
from tests.support.writers import RoutingPolicyWriter, TenantWriter


def altering(**changes: Any) -> Callable[[RoutingPolicy], RoutingPolicy]:
    return lambda policy: replace(policy, **changes)


@pytest.fixture
def table(database: AsyncEngine) -> RoutingPolicyWriter:
    return RoutingPolicyWriter(database)


async def test_a_policy_changes_field_by_field(store: TenantWriter, table: RoutingPolicyWriter) -> None:
    await store.create_tenant("acme", "standard")
    assert await table.policy_of("acme") == RoutingPolicy()
    await table.change("acme", altering(preference=Preference.ECONOMY, cascade_percent=70))
    changed = await table.change("acme", altering(degrade=True, cascade_percent=None, aliases={"gpt-4o": "auto"}))
    assert changed == RoutingPolicy(Preference.ECONOMY, degrade=True, aliases={"gpt-4o": "auto"})
    assert await table.policy_of("acme") == changed


async def test_a_principal_comes_with_its_tenants_policy(store: TenantWriter, table: RoutingPolicyWriter) -> None:
    for name in ("acme", "other"):
        await store.create_tenant(name, "standard")
    mine, other = [(await store.create_key(name)).record.public_id for name in ("acme", "other")]
    policy = await table.change("acme", altering(degrade_near_budget=True))
    found = await store.active_keys([mine, other])
    assert found[mine].principal.policies.routing == policy
    assert found[other].principal.policies.routing == RoutingPolicy()


async def test_what_cannot_be_changes_nothing(store: TenantWriter, table: RoutingPolicyWriter) -> None:
    await store.create_tenant("acme", "standard")
    with pytest.raises(UnknownTenant, match="nobody"):
        await table.change("nobody", altering(degrade=True))
    with pytest.raises(UnknownTenant, match="nobody"):
        await table.policy_of("nobody")
    with pytest.raises(InvalidPolicy):
        await table.change("acme", altering(degrade=True, cascade_percent=100))
    assert await table.policy_of("acme") == RoutingPolicy()
