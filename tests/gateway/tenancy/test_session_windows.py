"""Session settings of tenants, on SQLite and on PostgreSQL."""

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.sessions.policy import SessionWindow
from gateway.tenancy.database import writing
from gateway.tenancy.policies import POLICY_TABLES, SessionPolicy
from tests.support.writers import TenantWriter


async def test_a_principal_comes_with_what_its_tenant_wants(store: TenantWriter, database: AsyncEngine) -> None:
    acme = await store.create_tenant("acme", "standard")
    await store.create_tenant("other", "standard")
    mine, other = [(await store.create_key(name)).record.public_id for name in ("acme", "other")]
    for window in (SessionWindow.SUMMARY, SessionWindow.SLIDING, None):
        async with writing(database) as connection:
            await POLICY_TABLES["session"].write(connection, acme.id, SessionPolicy(window))
        found = await store.active_keys([mine, other])
        assert found[mine].principal.policies.session.window is window
        assert found[other].principal.policies.session.window is None
