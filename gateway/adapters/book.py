"""Adapters for every request, from memory. Every replica knows a change within REFRESH_S of its commit."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from engine.adapters.source import AdapterSource
from gateway.adapters.files import AdapterFiles
from gateway.adapters.names import own_name
from gateway.adapters.records import Adapter, AdapterVersion
from gateway.errors import OperatorError
from gateway.tenancy.records import Principal

REFRESH_S = 2.0
READ_TIMEOUT_S = 2.0

_log = logging.getLogger(__name__)


class AdapterReader(Protocol):
    """Source of adapters: `AdapterStore`, or a stand-in. Raises `StoreUnavailable`."""

    async def revision(self) -> int:
        """A number that differs after every change."""
        ...

    async def adapters(self) -> Sequence[Adapter]:
        """All adapters."""
        ...


class NoAdapters:
    """A source without adapters."""

    async def revision(self) -> int:
        return 0

    async def adapters(self) -> Sequence[Adapter]:
        return ()


class AdapterBook:
    """The adapters of all tenants. One per process, on one event loop: `load` once, then `start`; `aclose` ends the
    refreshing. A failed read keeps the known adapters, and is logged once per outage."""

    def __init__(self, source: AdapterReader, files: AdapterFiles, *, refresh_s: float = REFRESH_S) -> None:
        self._source = source
        self._files = files
        self._refresh_s = refresh_s
        self._revision: int | None = None
        self._by_tenant: dict[str, dict[str, Adapter]] = {}
        self._refresher: asyncio.Task[None] | None = None
        self._outage = False

    async def load(self) -> None:
        """Read all adapters, if any has changed.

        Raises:
            StoreUnavailable: the database does not answer; the known adapters stay.
        """
        revision = await self._source.revision()
        if revision == self._revision:
            return
        by_tenant: dict[str, dict[str, Adapter]] = {}
        for adapter in await self._source.adapters():
            if adapter.serving:
                by_tenant.setdefault(adapter.tenant_id, {})[adapter.name] = adapter
        # A change between the two reads has a later revision, and is read again.
        self._by_tenant, self._revision = by_tenant, revision

    def find(self, name: str, caller: Principal) -> Adapter | None:
        """The caller's adapter by its name, with or without the tenant's prefix. Other tenants' are never found."""
        own = own_name(name, caller.tenant_name)
        return None if own is None else self._by_tenant.get(caller.tenant_id, {}).get(own)

    def of_tenant(self, tenant_id: str) -> Sequence[Adapter]:
        """A tenant's adapters by name."""
        mine = self._by_tenant.get(tenant_id, {})
        return [mine[name] for name in sorted(mine)]

    def source(self, version: AdapterVersion) -> AdapterSource:
        """A version as the engine takes it."""
        return self._files.source(version.digest)

    def start(self) -> None:
        """Refresh in the background."""
        self._refresher = asyncio.create_task(self._refresh())

    async def aclose(self) -> None:
        """End the refreshing."""
        if self._refresher is not None:
            self._refresher.cancel()
            await asyncio.wait([self._refresher])

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    await self.load()
            except (OperatorError, TimeoutError) as error:
                if not self._outage:
                    _log.warning("adapters cannot be read again: %s", str(error) or "no answer in time")
                self._outage = True
            else:
                if self._outage:
                    _log.warning("adapters can be read again")
                self._outage = False


def no_adapters() -> AdapterBook:
    """A book that stays empty."""
    return AdapterBook(NoAdapters(), AdapterFiles(Path()))
