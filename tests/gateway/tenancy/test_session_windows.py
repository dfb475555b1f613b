"""What tenants want of their sessions, on SQLite and on PostgreSQL."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.sessions.policy import SessionWindow
from gateway.tenancy.database import writing
from gateway.tenancy.session_windows import write_session_window
from tests.support.writers import TenantWriter

pytestmark = pytest.mark.anyio


async def test_a_principal_comes_with_what_its_tenant_wants(store: TenantWriter, database: AsyncEngine) -> None:
    acme = await store.create_tenant("acme", "standard")
    await store.create_tenant("other", "standard")
    mine, other = [(await store.create_key(name)).record.public_id for name in ("acme", "other")]
    for window in (SessionWindow.SUMMARY, SessionWindow.SLIDING, None):
        async with writing(database) as connection:
            await write_session_window(connection, acme.id, window)
        found = await store.active_keys([mine, other])
        assert found[mine].principal.session_window is window
        assert found[other].principal.session_window is None
