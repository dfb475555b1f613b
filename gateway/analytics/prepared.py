"""A store of usage whose tables are made when it is first asked for something."""

import asyncio
from collections.abc import Sequence
from typing import Any

from gateway.analytics.schema import migrate
from gateway.analytics.store import Analytics, Parameters, Row


class PreparedAnalytics:
    """`Analytics` over another one, brought to this program's version before its first call: so nothing waits for the
    store at start-up, and one that is away then is made ready when it is back. Every call raises what `migrate` does.
    """

    def __init__(self, analytics: Analytics) -> None:
        self._analytics = analytics
        self._lock = asyncio.Lock()
        self._ready = False

    async def command(self, sql: str, parameters: Parameters | None = None) -> None:
        await self._prepare()
        await self._analytics.command(sql, parameters)

    async def query(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        await self._prepare()
        return await self._analytics.query(sql, parameters)

    async def insert(
        self,
        table: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        deduplication_token: str | None = None,
    ) -> None:
        await self._prepare()
        await self._analytics.insert(table, columns, rows, deduplication_token)

    async def aclose(self) -> None:
        await self._analytics.aclose()

    async def _prepare(self) -> None:
        if self._ready:
            return
        async with self._lock:
            if not self._ready:
                await migrate(self._analytics)
                self._ready = True
