"""Changes of adapters, within the caller's transaction. The caller has locked the tenant and holds the lock of changes,
so what is read stays true."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.adapters.source import AdapterFacts
from gateway.adapters.errors import AdapterConflict, InvalidAdapter, UnknownAdapter
from gateway.adapters.queries import last_revision
from gateway.adapters.records import Adapter, AdapterUpload, AdapterVersion
from gateway.adapters.tables import AdapterRow, AdapterUploadRow, AdapterVersionRow

UPLOAD_LIFE = timedelta(hours=24)
FULL_WEIGHT = 100
"""Weight of a version that gets all requests."""
MAX_WEIGHT = 1_000_000

_ID_CHARS = "abcdefghijklmnopqrstuvwxyz0123456789"


class AdapterChanges:
    """Writes on an open connection at the instant `at`."""

    def __init__(self, connection: AsyncConnection, at: datetime) -> None:
        self._connection = connection
        self._at = at

    async def create(self, tenant_id: str, name: str, model: str) -> Adapter:
        """An adapter without versions, to which the first is added at once."""
        random = "".join(secrets.choice(_ID_CHARS) for _ in range(12))
        adapter = Adapter(f"{name}:{random}", tenant_id, name, model, self._at, (), {})
        row: dict[str, Any] = {
            "id": adapter.id,
            "tenant_id": tenant_id,
            "name": name,
            "model": model,
            "weights": {},
            "previous": None,
            "price_multiplier": "1",
            "revision": await self._next_revision(),
            "created_at": self._at,
        }
        await self._connection.execute(insert(AdapterRow).values(row))
        return adapter

    async def add_version(self, adapter: Adapter, facts: AdapterFacts, *, activate: bool) -> Adapter:
        """Add a version. `activate`: it gets all requests; the first one does in any case.

        Raises:
            AdapterConflict: a version of the adapter has the same files.
        """
        for version in adapter.versions:
            if version.digest == facts.digest:
                raise AdapterConflict(f"version {version.number} of {adapter.name} has the same files", "files")
        version = AdapterVersion(
            await self._next_number(adapter.id),
            facts.digest,
            facts.rank,
            tuple(facts.targets),
            facts.parameters,
            facts.bytes,
            self._at,
        )
        row = {
            "adapter_id": adapter.id,
            "number": version.number,
            "digest": version.digest,
            "rank": version.rank,
            "targets": list(version.targets),
            "parameters": version.parameters,
            "bytes": version.bytes,
            "created_at": self._at,
        }
        await self._connection.execute(insert(AdapterVersionRow).values(row))
        added = replace(adapter, versions=(*adapter.versions, version))
        if not adapter.versions:
            return await self._update(replace(added, weights={version.number: FULL_WEIGHT}))
        if activate:
            return await self.set_weights(added, {version.number: FULL_WEIGHT})
        return await self._update(added)

    async def set_weights(self, adapter: Adapter, weights: Mapping[int, int]) -> Adapter:
        """Change the shares of the versions. The former ones are kept for a rollback.

        Raises:
            UnknownAdapter: a version does not exist.
            InvalidAdapter: no weight is above 0.
        """
        for number in weights:
            if adapter.version(number) is None:
                raise UnknownAdapter(f"{adapter.name} has no version {number}", "weights")
        if not any(weights.values()):
            raise InvalidAdapter("one version at least must have a weight above 0", "weights")
        if weights == adapter.weights:
            return adapter
        return await self._update(replace(adapter, weights=dict(weights), previous=adapter.weights))

    async def rollback(self, adapter: Adapter) -> Adapter:
        """Return to the weights before the last change. A second rollback undoes the first.

        Raises:
            AdapterConflict: there are none, or their versions are deleted.
        """
        if adapter.previous is None:
            raise AdapterConflict(f"{adapter.name} has no earlier weights")
        returned = replace(adapter, weights=adapter.previous, previous=adapter.weights)
        if not returned.serving:
            raise AdapterConflict(f"the versions that served {adapter.name} before are deleted")
        return await self._update(returned)

    async def set_multiplier(self, adapter: Adapter, multiplier: Decimal) -> Adapter:
        """Change the multiplier of the base model's price, for requests that are admitted from now on."""
        return await self._update(replace(adapter, price_multiplier=multiplier))

    async def delete_version(self, adapter: Adapter, number: int) -> Adapter:
        """Delete a version that gets no requests.

        Raises:
            UnknownAdapter: it does not exist.
            AdapterConflict: it gets requests.
        """
        if adapter.version(number) is None:
            raise UnknownAdapter(f"{adapter.name} has no version {number}")
        if number in adapter.serving:
            raise AdapterConflict(f"version {number} of {adapter.name} gets requests: change the weights first")
        await self._connection.execute(
            update(AdapterVersionRow)
            .where(AdapterVersionRow.adapter_id == adapter.id, AdapterVersionRow.number == number)
            .values(deleted_at=self._at)
        )
        left = tuple(version for version in adapter.versions if version.number != number)
        return await self._update(replace(adapter, versions=left))

    async def delete(self, adapter: Adapter) -> None:
        """Delete an adapter with all versions. Its name is free, its id is not used again."""
        await self._write(adapter, deleted_at=self._at)

    async def open_upload(self, upload: AdapterUpload) -> None:
        """Insert an upload."""
        files = {name: {"bytes": size, "sha256": upload.sha256[name]} for name, size in upload.sizes.items()}
        row = {
            "id": upload.id,
            "tenant_id": upload.tenant_id,
            "name": upload.name,
            "model": upload.model,
            "files": files,
            "activate": upload.activate,
            "created_at": upload.created_at,
            "expires_at": upload.expires_at,
        }
        await self._connection.execute(insert(AdapterUploadRow).values(row))

    async def expire_uploads(self) -> None:
        """Remove the rows of the uploads that have expired."""
        await self._connection.execute(delete(AdapterUploadRow).where(AdapterUploadRow.expires_at <= self._at))

    async def close_upload(self, upload_id: str) -> None:
        """Remove the row of an upload."""
        await self._connection.execute(delete(AdapterUploadRow).where(AdapterUploadRow.id == upload_id))

    async def _update(self, adapter: Adapter) -> Adapter:
        await self._write(
            adapter,
            weights=_texts(adapter.weights),
            previous=None if adapter.previous is None else _texts(adapter.previous),
            price_multiplier=f"{adapter.price_multiplier:f}",
        )
        return adapter

    async def _write(self, adapter: Adapter, **values: Any) -> None:
        revision = await self._next_revision()
        await self._connection.execute(
            update(AdapterRow).where(AdapterRow.id == adapter.id).values(revision=revision, **values)
        )

    async def _next_revision(self) -> int:
        return await last_revision(self._connection) + 1

    async def _next_number(self, adapter_id: str) -> int:
        """Numbers of deleted versions are not used again."""
        query = select(func.max(AdapterVersionRow.number)).where(AdapterVersionRow.adapter_id == adapter_id)
        return (await self._connection.scalar(query) or 0) + 1


def new_upload_id() -> str:
    """An id that cannot be guessed."""
    return secrets.token_hex(16)


def _texts(weights: Mapping[int, int]) -> dict[str, int]:
    return {str(number): weight for number, weight in weights.items()}
