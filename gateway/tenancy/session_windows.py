"""Tenants' session policies in the SQL store. Like limits, they are read together with a tenant's keys."""

from collections.abc import Iterable, Mapping

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.sessions.policy import SessionWindow
from gateway.tenancy.database import answering
from gateway.tenancy.queries import tenant_id_of
from gateway.tenancy.tables import SessionWindowRow


class SessionWindowTable:
    """Reads policies for the command line. Every method raises `StoreUnavailable` if the database does not answer, and
    `UnknownTenant` if there is no such tenant."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def window_of(self, tenant_name: str) -> SessionWindow | None:
        """A tenant's policy; None: not stated."""
        with answering():
            async with self._database.connect() as connection:
                tenant_id = await tenant_id_of(connection, tenant_name)
                return (await read_session_windows(connection, [tenant_id])).get(tenant_id)


async def read_session_windows(connection: AsyncConnection, tenant_ids: Iterable[str]) -> Mapping[str, SessionWindow]:
    """Stated policies, by tenant id."""
    query = select(SessionWindowRow.tenant_id, SessionWindowRow.policy).where(
        SessionWindowRow.tenant_id.in_(tuple(tenant_ids))
    )
    return {row.tenant_id: SessionWindow(row.policy) for row in (await connection.execute(query)).all()}


async def write_session_window(connection: AsyncConnection, tenant_id: str, window: SessionWindow | None) -> None:
    """Replace a tenant's policy; None: the settings apply again. The caller holds a lock on the tenant."""
    await connection.execute(delete(SessionWindowRow).where(SessionWindowRow.tenant_id == tenant_id))
    if window is not None:
        await connection.execute(insert(SessionWindowRow).values(tenant_id=tenant_id, policy=window.value))
