"""What tenants have paid in advance, brought along with their keys."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.billing.books import reading
from gateway.billing.credit import read_granted
from gateway.tenancy.authenticator import KeySource
from gateway.tenancy.records import ActiveKey, Principal


class PrepaidKeys:
    """A `KeySource` over another one: each principal knows its tenant's credit, as fresh as its key is."""

    def __init__(self, keys: KeySource[Principal], database: AsyncEngine) -> None:
        self._keys = keys
        self._database = database

    async def active_keys(self, public_ids: Sequence[str]) -> Mapping[str, ActiveKey[Principal]]:
        """Raises: StoreUnavailable."""
        found = await self._keys.active_keys(public_ids)
        tenant_ids = {key.principal.tenant_id for key in found.values()}
        if not tenant_ids:
            return found
        async with reading(self._database) as connection:
            granted = await read_granted(connection, tenant_ids)
        return {
            public_id: replace(
                key, principal=replace(key.principal, credit_nanodollars=granted.get(key.principal.tenant_id))
            )
            for public_id, key in found.items()
        }
