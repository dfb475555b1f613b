"""Operations in the command's own process, on the stores of the settings: for a data directory without a gateway."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import orjson

from gateway.analytics import open_analytics
from gateway.analytics.prepared import PreparedAnalytics
from gateway.config.pepper import load_pepper
from gateway.config.settings import Settings
from gateway.config.store_urls import require_sqlite_file
from gateway.http.errors import APIError
from gateway.management.client.transport import Refused
from gateway.management.operations.context import context_from, hosting_of
from gateway.management.operations.local import LocalOperations
from gateway.management.operations.routes import Document
from gateway.process.open_limiter import open_limiter
from gateway.routing.names import ModelNames
from gateway.tenancy import open_database
from gateway.tenancy.schema import upgrade


class InProcess:
    """A `Transport`. The stores open at the first operation. A read makes no database."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runner = asyncio.Runner()
        self._opened = AsyncExitStack()
        self._operations: LocalOperations | None = None

    def read(self, name: str, path: Mapping[str, str], query: Mapping[str, str]) -> Any:
        if self._operations is None:
            require_sqlite_file(self._settings.database_url.get_secret_value())

        async def read() -> Any:
            return await (await self._open()).read(name, path, query)

        answer = self._run(read())
        return answer.content.decode() if isinstance(answer, Document) else _plain(answer)

    def change(self, name: str, path: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        async def change() -> Any:
            return await (await self._open()).change(name, path, body)

        return _plain(self._run(change()))

    def store(self, name: str, path: Mapping[str, str], query: Mapping[str, str], content: bytes) -> Any:
        async def store() -> Any:
            return await (await self._open()).store(name, content, path, query)

        return _plain(self._run(store()))

    def close(self) -> None:
        with self._runner:
            self._runner.run(self._opened.aclose())

    def _run(self, work: Any) -> Any:
        try:
            return self._runner.run(work)
        except APIError as error:
            raise Refused(error.message, error.status, error.code, error.param) from error.__cause__

    async def _open(self) -> LocalOperations:
        if self._operations is None:
            settings = self._settings
            pepper, url = load_pepper(settings), settings.database_url.get_secret_value()
            await upgrade(url)
            database = open_database(url)
            self._opened.push_async_callback(database.dispose)
            analytics = PreparedAnalytics(open_analytics(settings.analytics_url.get_secret_value()))
            self._opened.push_async_callback(analytics.aclose)
            limiter = open_limiter(settings, replica="")  # a command takes no holds, so it is no replica
            self._opened.push_async_callback(limiter.aclose)
            served = settings.served_names or None  # without any, flags of turnpike serve will name them
            names = ModelNames(settings.served_names, settings.small_models, settings.model_versions, settings.aliases)
            hosting = hosting_of(settings, settings.models, names.is_taken)
            self._operations = LocalOperations(
                context_from(settings, database, pepper, analytics, limiter, served, hosting)
            )
        return self._operations


def _plain(answer: Any) -> Any:
    """The answer as it would arrive over HTTP."""
    return orjson.loads(orjson.dumps(answer))
