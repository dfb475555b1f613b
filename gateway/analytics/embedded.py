"""ClickHouse's engine in this process (chDB), for one gateway without a server."""

import asyncio
import fcntl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ProgrammingError

from engine.runtime.thread import lower_priority
from gateway.analytics.answers import answering
from gateway.analytics.errors import AnalyticsAway, AnalyticsInUse
from gateway.analytics.store import Parameters, Row, check_batch, insert_settings

STATEMENT_TIMEOUT_S = 30

T = TypeVar("T")


class EmbeddedClickHouse:
    """`Analytics` in a folder, or in memory if `folder` is None.

    The engine is synchronous: it runs on a thread of its own, one call at a time, with at most one core per statement
    and a lower priority than requests. A folder belongs to one process, and a process has one folder, until `aclose`.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="turnpike-analytics", initializer=lower_priority
        )
        self._client: Client | None = None

    async def command(self, sql: str, parameters: Parameters | None = None) -> None:
        """As in `Analytics`."""
        await self._call(lambda client: client.command(sql, dict(parameters or {})))

    async def query(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """As in `Analytics`."""

        def rows(client: Client) -> list[Row]:
            return [tuple(row) for row in client.query(sql, dict(parameters or {})).result_rows]

        return await self._call(rows)

    async def insert(
        self,
        table: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        deduplication_token: str | None = None,
    ) -> None:
        """As in `Analytics`."""
        check_batch(rows)
        settings = insert_settings(deduplication_token)
        await self._call(lambda client: client.insert(table, rows, columns, settings=settings))

    async def aclose(self) -> None:
        """As in `Analytics`."""

        def close() -> None:
            if self._client is not None:
                self._client.close()
                self._client = None

        await asyncio.get_running_loop().run_in_executor(self._thread, close)
        self._thread.shutdown()

    async def _call(self, work: Callable[[Client], T]) -> T:
        """Run `work` on the engine's thread. It completes even if the caller is cancelled."""

        def run() -> T:
            with answering():
                if self._client is None:
                    self._client = self._open()
                return work(self._client)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _open(self) -> Client:
        if self._folder is not None:
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise AnalyticsAway(f"cannot make the folder {self._folder} ({type(error).__name__})") from error
        try:
            return clickhouse_connect.get_client(
                interface="chdb",
                path=None if self._folder is None else str(self._folder),
                show_clickhouse_errors=True,
                tz_mode="aware",
                settings={"max_threads": 1, "max_execution_time": STATEMENT_TIMEOUT_S},
            )
        except ProgrammingError as error:
            raise self._open_error(str(error)) from error

    def _open_error(self, text: str) -> AnalyticsAway:
        where = self._folder or "memory"
        if "already initialized with path" in text:
            return AnalyticsInUse(f"cannot open {where}: this process has another embedded store open")
        if self._folder is not None and _is_locked(self._folder / "status"):
            return AnalyticsInUse(
                f"{where} belongs to another process: an embedded store has one owner. Stop the other one, give this "
                "one a folder of its own, or let both use a ClickHouse server"
            )
        return AnalyticsAway(f"the embedded store in {where} does not open")


def _is_locked(status: Path) -> bool:
    """Whether an engine holds the lock on its status file. Its own error does not tell."""
    try:
        with status.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
