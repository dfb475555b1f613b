"""A change: one transaction that holds the effect, its lines in the audit log, and the answer to a repetition."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.management.operations.audit import AuditLog, Entry
from gateway.management.operations.tables import MAX_ACTOR_CHARS
from gateway.tenancy.database import writing
from gateway.tenancy.errors import InvalidKey, StoreUnavailable
from gateway.tenancy.tables import AdminKeyRow

ADVISORY_LOCK = 0x7475726E61646D69
"""PostgreSQL's lock around a change: a constant that nothing else takes."""
MAX_WAIT_S = 10.0
"""How long a change waits for those before it."""
COMMAND_LINE = "command-line"
"""Actors of changes that a user makes with the `turnpike` command begin with it."""
SETTINGS = "settings"
"""The actor of changes that a gateway makes at its start because its settings declare them."""

Now = Callable[[], datetime]


def command_line_actor(user: str) -> str:
    """The actor of a change that the operating system's `user` makes on the server itself: `command-line:` and the
    user's name, cut to `MAX_ACTOR_CHARS`."""
    return f"{COMMAND_LINE}:{user}"[:MAX_ACTOR_CHARS]


@dataclass(slots=True)
class Change:
    """The transaction of a handler. Its writes through `connection` are committed together, or rolled back."""

    connection: AsyncConnection
    at: datetime
    entries: list[Entry] = field(default_factory=list)

    def record(
        self,
        action: str,
        resource: str,
        resource_id: str,
        *,
        tenant_id: str | None = None,
        before: Mapping[str, Any] | None = None,
        after: dict[str, Any],
    ) -> dict[str, Any]:
        """Add an audit entry, without secrets, and return `after`. A change that left its record as it was makes no
        entry."""
        if before != after:
            self.entries.append(Entry(action, resource, resource_id, tenant_id, before, after))
        return after


class Changes:
    """Makes changes one at a time, in this process by a lock and among all processes by the database's.

    They are rare, and in a row nothing can come between what a change read, what it wrote and what the log says. One
    that waits holds no connection, so that waiting changes keep none from those who check keys.
    """

    def __init__(self, database: AsyncEngine, pepper: bytes, now: Now = lambda: datetime.now(UTC)) -> None:
        self._database = database
        self._audit = AuditLog(pepper)
        self._now = now
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def change(self, actor: str, request_id: str) -> AsyncIterator[Change]:
        """A change by `actor`: an administrator's key (its public id), `command_line_actor` or `SETTINGS`.

        Raises:
            InvalidKey: the key has been revoked since.
            StoreUnavailable: the database does not answer, or too many changes wait.
        """
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                await self._turn.acquire()
        except TimeoutError:
            raise StoreUnavailable("too many changes wait") from None
        try:
            async with writing(self._database) as connection:
                if connection.dialect.name != "sqlite":
                    await connection.execute(select(func.pg_advisory_xact_lock(ADVISORY_LOCK)))
                await _require_in_use(connection, actor)
                change = Change(connection, self._now())
                yield change
                await self._audit.append(connection, actor, request_id, change.at, change.entries)
        finally:
            self._turn.release()


async def _require_in_use(connection: AsyncConnection, actor: str) -> None:
    """The key was good when the request came, as far as memory goes. Nothing is written by one that is revoked."""
    if actor == SETTINGS or actor.partition(":")[0] == COMMAND_LINE:  # neither is a public id: those have 12 characters
        return
    query = select(AdminKeyRow.public_id).where(AdminKeyRow.public_id == actor, AdminKeyRow.revoked_at.is_(None))
    if await connection.scalar(query) is None:
        raise InvalidKey("the key has been revoked")
