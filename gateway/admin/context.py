"""What the admin API works on."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.admin.change import Change
from gateway.admin.paging import Cursors
from gateway.tenancy.changes import TenantChanges
from gateway.tenancy.database import answering


@dataclass(frozen=True, slots=True)
class AdminContext:
    """`tiers` are the classes of service that a tenant can be in."""

    database: AsyncEngine
    pepper: bytes = field(repr=False)
    tiers: tuple[str, ...]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def cursors(self) -> Cursors:
        return Cursors(self.pepper)

    def tenants(self, change: Change) -> TenantChanges:
        return TenantChanges(change.connection, self.pepper, lambda: change.at)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        with answering():
            async with self.database.connect() as connection:
                yield connection
