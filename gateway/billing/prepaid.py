"""Prepaid credit of tenants, read together with their keys."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.billing.books import reading
from gateway.billing.credit import read_credit
from gateway.common.timestamps import unix_ms
from gateway.tenancy.authenticator import KeySource
from gateway.tenancy.records import ActiveKey, Principal


class PrepaidKeys:
    """A `KeySource` over another one that adds the tenant's credit to each principal, as fresh as its key. `follow`:
    called once for each tenant that is found to be prepaid, with the time of its first entry in Unix milliseconds, by
    tenant id."""

    def __init__(
        self,
        keys: KeySource[Principal],
        database: AsyncEngine,
        follow: Callable[[Mapping[str, int]], object] = lambda _: None,
    ) -> None:
        self._keys = keys
        self._database = database
        self._follow = follow
        self._followed: set[str] = set()

    async def active_keys(self, public_ids: Sequence[str]) -> Mapping[str, ActiveKey[Principal]]:
        """The active keys, with their tenants' credit. Raises StoreUnavailable."""
        found = await self._keys.active_keys(public_ids)
        tenant_ids = {key.principal.tenant_id for key in found.values()}
        if not tenant_ids:
            return found
        async with reading(self._database) as connection:
            credits = await read_credit(connection, tenant_ids)
        if unheard := {id: unix_ms(credit.since) for id, credit in credits.items() if id not in self._followed}:
            self._follow(unheard)
            self._followed.update(unheard)
        granted = {id: credit.granted_nanodollars for id, credit in credits.items()}
        return {
            public_id: replace(
                key, principal=replace(key.principal, credit_nanodollars=granted.get(key.principal.tenant_id))
            )
            for public_id, key in found.items()
        }
