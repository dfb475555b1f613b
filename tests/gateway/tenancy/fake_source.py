"""Keys in memory and a clock that only the test moves, for the authenticator."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from gateway.tenancy import Principal, StoreUnavailable
from gateway.tenancy import authenticator as module
from gateway.tenancy.keys import ApiKey, new_key
from gateway.tenancy.records import ActiveKey, RevokedKey
from tests.support.tenants import PEPPER


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeSource:
    """Keys in memory; counts queries, and can be down or silent."""

    def __init__(self) -> None:
        self.keys: dict[str, ActiveKey] = {}
        self.revoked: dict[str, RevokedKey] = {}
        self.queries: list[list[str]] = []
        self.down = False
        self.silent = False
        self.running = self.most_running = 0

    def add(self, tier: str = "standard") -> ApiKey:
        key = new_key()
        principal = Principal("tenant-id", "acme", tier, key.public_id)
        self.keys[key.public_id] = ActiveKey(key.digest(PEPPER), principal)
        return key

    async def active_keys(self, public_ids: Sequence[str]) -> Mapping[str, ActiveKey]:
        self.queries.append(list(public_ids))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0)
            if self.silent:
                await asyncio.Event().wait()
            if self.down:
                raise StoreUnavailable("down")
            return {each: self.keys[each] for each in public_ids if each in self.keys}
        finally:
            self.running -= 1

    async def revoked_keys(self, public_ids: Sequence[str]) -> Mapping[str, RevokedKey]:
        if self.down:
            raise StoreUnavailable("down")
        return {each: self.revoked[each] for each in public_ids if each in self.revoked}

    def revoke(self, key: ApiKey) -> None:
        former = self.keys.pop(key.public_id)
        self.revoked[key.public_id] = RevokedKey(former.digest, former.principal)


async def settle() -> None:
    """Let background reads finish."""
    for _ in range(10):
        await asyncio.sleep(0)


def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "READ_TIMEOUT_S", 0.05)
