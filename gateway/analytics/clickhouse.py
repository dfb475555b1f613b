"""Analytics on a ClickHouse server, over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import clickhouse_connect
from clickhouse_connect.driver.asyncclient import AsyncClient

from gateway.analytics.answers import answering
from gateway.analytics.errors import AnalyticsAway
from gateway.analytics.store import Parameters, Row, check_batch, insert_settings

CONNECT_TIMEOUT_S = 5
ANSWER_TIMEOUT_S = 30
"""Timeout of a whole call, and of a statement on the server, in seconds."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address and credentials of a ClickHouse server."""

    scheme: str
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str


class ClickHouse:
    """`Analytics` on a server."""

    def __init__(self, server: ServerAddress, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._server = server
        self._answer_timeout_s = answer_timeout_s
        self._client: AsyncClient | None = None
        self._connecting = asyncio.Lock()

    async def command(self, sql: str, parameters: Parameters | None = None) -> None:
        """As in `Analytics`."""
        async with self._asking() as client:
            await client.command(sql, dict(parameters or {}))

    async def query(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """As in `Analytics`."""
        async with self._asking() as client:
            answer = await client.query(sql, dict(parameters or {}))
            return [tuple(row) for row in answer.result_rows]

    async def insert(
        self,
        table: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        deduplication_token: str | None = None,
    ) -> None:
        """As in `Analytics`."""
        check_batch(rows)
        async with self._asking() as client:
            await client.insert(table, rows, columns, settings=insert_settings(deduplication_token))

    async def aclose(self) -> None:
        """As in `Analytics`."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[AsyncClient]:
        """A client, within the timeout of the call."""
        with answering():
            try:
                async with asyncio.timeout(self._answer_timeout_s):
                    yield await self._connect()
            except TimeoutError:
                raise AnalyticsAway(f"ClickHouse does not answer within {self._answer_timeout_s} s") from None

    async def _connect(self) -> AsyncClient:
        async with self._connecting:
            if self._client is None:
                server = self._server
                self._client = await clickhouse_connect.get_async_client(
                    interface=server.scheme,
                    host=server.host,
                    port=server.port,
                    username=server.user,
                    password=server.password,
                    database=server.database,
                    connect_timeout=CONNECT_TIMEOUT_S,
                    send_receive_timeout=self._answer_timeout_s,
                    query_retries=0,  # the caller decides about retries
                    autogenerate_session_id=False,  # calls of one session would exclude one another
                    show_clickhouse_errors=True,  # else the driver logs them, with their traceback
                    tz_mode="aware",
                    settings={"max_execution_time": int(self._answer_timeout_s) or 1},
                )
            return self._client
