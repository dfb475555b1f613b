"""The database's answers, remembered between writes: reading the same keys again is most of what a run would cost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import Any

from gateway.adapters.queries import AdapterStore
from gateway.billing.prepaid import PrepaidKeys
from gateway.billing.price_store import PriceStore
from gateway.tenancy import TenantStore


class Database:
    """Writes are made within `writing`: SQLite lets a second writer wait, and here that would stop everything."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._answers: dict[Any, Any] = {}
        self._writer = asyncio.Lock()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """For the time of a write."""
        async with self._writer:
            yield
        self._answers = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Under every gateway of the block: a question is asked of SQLite once, and then takes as long without it."""
        active_keys, versions = PrepaidKeys.active_keys, PriceStore.versions
        revoked_keys = TenantStore.revoked_keys
        revision, adapters = AdapterStore.revision, AdapterStore.adapters

        async def keys_once(source: PrepaidKeys, public_ids: Any) -> Any:
            return await self._once(tuple(public_ids), lambda: active_keys(source, public_ids))

        async def revoked_once(store: TenantStore, public_ids: Any) -> Any:
            return await self._once(("revoked", *public_ids), lambda: revoked_keys(store, public_ids))

        async def versions_once(store: PriceStore) -> Any:
            return await self._once("prices", lambda: versions(store))

        async def revision_once(store: AdapterStore) -> Any:
            return await self._once("adapters' revision", lambda: revision(store))

        async def adapters_once(store: AdapterStore) -> Any:
            return await self._once("adapters", lambda: adapters(store))

        PrepaidKeys.active_keys, PriceStore.versions = keys_once, versions_once  # type: ignore[method-assign]
        TenantStore.revoked_keys = revoked_once  # type: ignore[method-assign]
        AdapterStore.revision, AdapterStore.adapters = revision_once, adapters_once  # type: ignore[method-assign]
        try:
            yield
        finally:
            PrepaidKeys.active_keys, PriceStore.versions = active_keys, versions  # type: ignore[method-assign]
            TenantStore.revoked_keys = revoked_keys  # type: ignore[method-assign]
            AdapterStore.revision, AdapterStore.adapters = revision, adapters  # type: ignore[method-assign]

    async def _once(self, question: Any, ask: Any) -> Any:
        if question not in self._answers:
            remembered = self._answers
            answer = await ask()
            if remembered is self._answers:
                self._answers[question] = answer
            return answer
        await asyncio.sleep(self._random.uniform(3e-4, 5e-3))
        if question in self._answers:  # no writer was faster
            return self._answers[question]
        return await self._once(question, ask)
