"""Sessions ended by a logout, in the SQL database, so that a logout holds for every gateway on it."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from cachetools import FIFOCache
from sqlalchemy import delete, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.management.console.sessions import Session
from gateway.management.console.tables import EndedSessionRow
from gateway.tenancy.authenticator import MAX_OUTAGE_S
from gateway.tenancy.database import answering
from gateway.tenancy.errors import StoreUnavailable

MAX_SEEN = 10_000
"""Sessions that were found open and are remembered for an outage; beyond, the one not seen for longest is forgotten."""


class SessionRevocations:
    """Read at each request of the console. While the database does not answer, a session that was open at its last
    answer stays so, for as long as its key would.

    `clock` counts seconds and never goes back.
    """

    def __init__(
        self,
        database: AsyncEngine,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._now = now
        self._clock = clock
        self._seen_open: FIFOCache[str, float] = FIFOCache(MAX_SEEN)

    async def end(self, session: Session) -> None:
        """To be known everywhere when it returns. Ended already: nothing.

        Raises:
            StoreUnavailable: the database does not answer; the session may stay open.
        """
        self._seen_open.pop(session.id, None)
        with answering(), suppress(IntegrityError):
            async with self._database.begin() as connection:
                await connection.execute(delete(EndedSessionRow).where(EndedSessionRow.over_at <= self._now()))
                await connection.execute(insert(EndedSessionRow).values(id=session.id, over_at=session.over_at))

    async def has_ended(self, session: Session) -> bool:
        """
        Raises:
            StoreUnavailable: the database does not answer, and this session was not seen lately.
        """
        asked_at = self._clock()
        try:
            with answering():
                async with self._database.connect() as connection:
                    query = select(EndedSessionRow.id).where(EndedSessionRow.id == session.id)
                    ended = await connection.scalar(query) is not None
        except StoreUnavailable:
            seen_at = self._seen_open.get(session.id, -math.inf)
            if asked_at - seen_at > MAX_OUTAGE_S:
                raise
            return False
        if ended:
            self._seen_open.pop(session.id, None)
        else:
            self._seen_open[session.id] = asked_at
        return ended
