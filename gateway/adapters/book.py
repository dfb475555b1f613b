"""Adapters for every request, from memory. Every replica knows a change within REFRESH_S of its commit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from engine.adapters.source import AdapterSource
from gateway.adapters.files import AdapterFiles
from gateway.adapters.names import own_name
from gateway.adapters.records import Adapter, AdapterVersion
from gateway.common.refresher import REFRESH_S, Refresher
from gateway.tenancy.records import Principal


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
        self._revision: int | None = None
        self._by_tenant: dict[str, dict[str, Adapter]] = {}
        self._refresher = Refresher("adapters", self.load, refresh_s)

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
        self._refresher.start()

    async def aclose(self) -> None:
        """End the refreshing."""
        await self._refresher.aclose()


def no_adapters() -> AdapterBook:
    """A book that stays empty."""
    return AdapterBook(NoAdapters(), AdapterFiles(Path()))
