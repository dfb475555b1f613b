"""The application with files and batches over a fake engine: a real database, a real journal, real files."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette

from gateway.app import create_app
from gateway.batches.batches import Batches
from gateway.batches.store import BatchStore
from gateway.config.settings import Settings
from gateway.files.contents import LocalContents
from gateway.files.store import FileLimits, FileStore
from gateway.metering.event import UsageEvent
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.journal_file import JournalFile
from gateway.tenancy import open_database
from gateway.tenancy.records import ActiveKey, Principal
from gateway.tenancy.schema import upgrade
from gateway.tenancy.tables import TenantRow
from tests.support.fake_engine import FakeEngine
from tests.support.gateway import FakeAuthenticator, Server, serving
from tests.support.services import services_with

ENDED = ("failed", "completed", "expired", "cancelled")


class DatabaseAuthenticator(FakeAuthenticator):
    """Closes the databases of applications with them, on their event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.databases: list[AsyncEngine] = []

    async def aclose(self) -> None:
        await super().aclose()
        while self.databases:
            await self.databases.pop().dispose()


class FakeKeys:
    """The principals of a fake authenticator, by the public ids of keys. `suspended`: keys of suspended tenants."""

    def __init__(self, authenticator: FakeAuthenticator) -> None:
        self._authenticator = authenticator
        self.suspended: set[str] = set()
        self.revoked: set[str] = set()

    async def active_keys(self, public_ids: Sequence[str]) -> Mapping[str, ActiveKey[Principal]]:
        return {
            principal.key_id: ActiveKey(bytes(32), principal, is_suspended=principal.key_id in self.suspended)
            for principal in self._authenticator.principals.values()
            if principal.key_id in public_ids and principal.key_id not in self.revoked
        }


@dataclass
class BatchGateway:
    """A gateway that runs batches. Several share `folder`, and so its database and its files."""

    folder: Path
    engine: FakeEngine = field(default_factory=FakeEngine)
    authenticator: DatabaseAuthenticator = field(default_factory=DatabaseAuthenticator)
    index: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    min_free_bytes: int = 0

    def __post_init__(self) -> None:
        self.keys = FakeKeys(self.authenticator)
        self.url = f"sqlite+aiosqlite:///{self.folder / 'turnpike.db'}"
        if not (self.folder / "turnpike.db").exists():
            asyncio.run(_make_database(self.url, self.authenticator))

    @property
    def journal_path(self) -> Path:
        return self.folder / ("journal.db" if not self.index else f"journal-{self.index}.db")

    def app(self) -> Starlette:
        stated = {"embeddings": {"tiny": "mean"}, **self.settings}
        settings = Settings(data_dir=self.folder, **stated)
        contents = LocalContents(settings.files_folder / "contents", self.min_free_bytes)
        limits = FileLimits(settings.files.tenant_files, settings.files.tenant_bytes)
        database = open_database(self.url)
        self.authenticator.databases.append(database)
        batches = Batches(
            BatchStore(database), self.keys, settings.files_folder / "batches", settings.batches, 256 * 1024
        )
        self.journal = Journal(self.journal_path, interval_ms=5, min_free_bytes=0)
        services = services_with(
            self.folder,
            self.engine,
            self.authenticator,
            journal=self.journal,
            files=FileStore(database, contents, limits),
            batches=batches,
        )
        return create_app(settings, services)

    @contextmanager
    def serving(self) -> Iterator[Server]:
        with serving(self.app()) as server:
            yield server

    def events(self) -> list[UsageEvent]:
        """All usage events of this gateway's journal."""
        file = JournalFile(self.journal_path, read_only=True)
        try:
            return [UsageEvent.from_json(row.body) for row in file.events_after(0, 100_000)]
        finally:
            file.close()


def chat_line(custom_id: str, content: str = "hi", **body: Any) -> dict[str, Any]:
    """A line of an input file."""
    messages = [{"role": "user", "content": content}]
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "tiny", "messages": messages, **body},
    }


def as_jsonl(lines: Sequence[object]) -> bytes:
    return "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines).encode()


def read_jsonl(content: bytes) -> dict[str, dict[str, Any]]:
    """The objects of an output or error file, by custom id. Each has one."""
    objects = [json.loads(line) for line in content.splitlines()]
    by_id = {each["custom_id"]: each for each in objects}
    assert len(by_id) == len(objects), "a line has two answers"
    return by_id


async def _make_database(url: str, authenticator: FakeAuthenticator) -> None:
    await upgrade(url)
    database = open_database(url)
    async with database.begin() as connection:
        for principal in authenticator.principals.values():
            values = {"id": principal.tenant_id, "name": principal.tenant_name, "tier": principal.tier}
            await connection.execute(insert(TenantRow).values(**values, created_at=datetime.now(UTC)))
    await database.dispose()
