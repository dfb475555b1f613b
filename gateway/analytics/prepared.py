"""An analytics store whose tables are created on its first call."""

import asyncio
from collections.abc import Sequence
from typing import Any

from gateway.analytics.schema import migrate
from gateway.analytics.store import Analytics, Parameters, Row


class PreparedAnalytics:
    """`Analytics` over another one, migrated before its first call: start-up does not wait for the store, and a store
    that is away at that time is migrated once it is back. Every call raises what `migrate` does."""

    def __init__(self, analytics: Analytics) -> None:
        self._analytics = analytics
        self._lock = asyncio.Lock()
        self._ready = False

    async def command(self, sql: str, parameters: Parameters | None = None) -> None:
        """As in `Analytics`."""
        await self._prepare()
        await self._analytics.command(sql, parameters)

    async def query(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """As in `Analytics`."""
        await self._prepare()
        return await self._analytics.query(sql, parameters)

    async def insert(
        self,
        table: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        deduplication_token: str | None = None,
    ) -> None:
        """As in `Analytics`."""
        await self._prepare()
        await self._analytics.insert(table, columns, rows, deduplication_token)

    async def aclose(self) -> None:
        """As in `Analytics`."""
        await self._analytics.aclose()

    async def _prepare(self) -> None:
        if self._ready:
            return
        async with self._lock:
            if not self._ready:
                await migrate(self._analytics)
                self._ready = True
