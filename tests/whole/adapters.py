"""The adapters of every run's tenants, what an operator does with them, and their files.

Two names, of several tenants each, so that a name alone tells no tenant. All are of the model `large`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from sqlalchemy.ext.asyncio import AsyncEngine

from engine.adapters.errors import UnsupportedAdapter
from engine.adapters.folder import digest_of
from engine.adapters.source import AdapterFacts, AdapterSource
from engine.runtime import adapter_reading
from gateway.adapters.changes import AdapterChanges
from gateway.adapters.files import CONFIG_FILE, WEIGHTS_FILE
from gateway.adapters.queries import adapter_of
from gateway.adapters.records import Adapter
from gateway.billing.prices import PriceTerms
from gateway.tenancy.database import writing
from tests.support.writers import PriceWriter
from tests.whole import threads

BASE = "large"
NAMES = ("tone", "terms")
OWNERS = ("premium", "plain", "daily", "prepaid", "cascade", "probe")
TONE, TERMS = NAMES
MULTIPLIERS = {TERMS: Decimal("1.5")}
OWN_PRICES = {("plain", TONE): ("3", "1", "5"), ("probe", TONE): ("2", "2", "2")}
"""Dollars per million tokens of input, cached input and output."""
LIMITED = ("plain", TERMS)
LIMITED_TOKENS_PER_DAY = 250
"""Of the adapter `LIMITED`."""


@dataclass(frozen=True, slots=True)
class Life:
    """An adapter from its creation to its deletion, in seconds of the run; one made later by its name is another.

    `digests`: of its versions by number. `weights`: each with the second from which it holds.
    """

    id: str
    tenant: str
    name: str
    digests: Mapping[int, str]
    weights: tuple[tuple[float, Mapping[int, int]], ...]
    since_s: float = 0.0
    until_s: float = float("inf")
    price: tuple[str, str, str] | None = None
    """Its own, as in `OWN_PRICES`."""

    def overlaps(self, since_s: float, until_s: float) -> bool:
        """Whether it existed at any time between."""
        return self.since_s <= until_s and self.until_s >= since_s

    def serving(self, since_s: float, until_s: float) -> set[int]:
        """Numbers of the versions that got requests at any time between."""
        found: set[int] = set()
        for index, (at_s, weights) in enumerate(self.weights):
            ends_s = self.weights[index + 1][0] if index + 1 < len(self.weights) else self.until_s
            if at_s <= until_s and ends_s >= since_s:
                found |= {number for number, weight in weights.items() if weight}
        return found


@dataclass(slots=True)
class Registry:
    """All adapters that ever were in a run."""

    lives: list[Life]

    def of(self, tenant: str, name: str) -> list[Life]:
        """Those of a tenant by a name, in order."""
        return [life for life in self.lives if (life.tenant, life.name) == (tenant, name)]

    def live(self, tenant: str, name: str) -> Life | None:
        """The one that is not deleted."""
        return next((life for life in self.of(tenant, name) if life.until_s == float("inf")), None)

    def by_id(self, adapter_id: str) -> Life | None:
        """The one with this id."""
        return next((life for life in self.lives if life.id == adapter_id), None)

    def change(self, life: Life, **changes: Any) -> None:
        """Replace what is known of one."""
        self.lives[self.lives.index(life)] = replace(life, **changes)


def own_name(name: str, tenant: str) -> str | None:
    """The name of an adapter without its tenant's prefix; None: another tenant's prefix."""
    prefix, slash, rest = name.partition("/")
    return name if not slash else rest if prefix == tenant else None


def contents_of(tenant: str, name: str, number: int) -> bytes:
    """The weights of a version. Two tenants have uploaded equal ones."""
    shared = name == TERMS and tenant in ("premium", "plain")
    return f"{'shared' if shared else tenant} {name} {number}".encode()


def write_files(folder: Path) -> Mapping[tuple[str, str, int], str]:
    """Write the files of all versions into the folders of their digests. Returns the digests by tenant, name and
    number."""
    digests = {}
    for tenant in OWNERS:
        for name in NAMES:
            for number in (1, 2):
                new = folder / "new"
                new.mkdir(parents=True)
                (new / CONFIG_FILE).write_bytes(b"{}")
                (new / WEIGHTS_FILE).write_bytes(contents_of(tenant, name, number))
                digest = digests[tenant, name, number] = digest_of(new)
                if (folder / digest).is_dir():
                    for file in new.iterdir():
                        file.unlink()
                    new.rmdir()
                else:
                    new.rename(folder / digest)
    return digests


async def furnish(
    database: AsyncEngine, ids: Mapping[str, str], digests: Mapping[tuple[str, str, int], str]
) -> tuple[Life, ...]:
    """Make the adapters of all `OWNERS`, with their prices."""
    lives = []
    for tenant in OWNERS:
        for name in NAMES:
            made = {number: digests[tenant, name, number] for number in (1, 2)}
            weights = {1: 50, 2: 50} if name == TONE else {1: 100}
            life = await create(database, tenant, ids[tenant], name, made, weights)
            if (price := OWN_PRICES.get((tenant, name))) is not None:
                life = replace(life, price=price)
                paid, cached, answered = map(Decimal, price)
                await PriceWriter(database).add(
                    PriceTerms.from_dollars(life.id, paid, answered, cached_input=cached), datetime.now(UTC)
                )
            lives.append(life)
    return tuple(lives)


async def create(
    database: AsyncEngine,
    tenant: str,
    tenant_id: str,
    name: str,
    digests: Mapping[int, str],
    weights: Mapping[int, int],
    at_s: float = 0.0,
) -> Life:
    """Make an adapter with versions of these files, numbered from 1."""
    async with writing(database) as connection:
        changes = AdapterChanges(connection, datetime.now(UTC))
        adapter = await changes.create(tenant_id, name, BASE)
        for number in sorted(digests):
            facts = AdapterFacts(digests[number], 8, ("q_proj",), 1000, 100, BASE)
            adapter = await changes.add_version(adapter, facts, activate=False)
        adapter = await changes.set_weights(adapter, weights)
        if name in MULTIPLIERS:
            adapter = await changes.set_multiplier(adapter, MULTIPLIERS[name])
    return Life(adapter.id, tenant, name, dict(digests), ((at_s, dict(weights)),), at_s)


async def delete(database: AsyncEngine, tenant_id: str, name: str) -> None:
    """Delete an adapter."""
    async with writing(database) as connection:
        adapter = await adapter_of(connection, tenant_id, name)
        await AdapterChanges(connection, datetime.now(UTC)).delete(adapter)


async def set_weights(database: AsyncEngine, tenant_id: str, name: str, weights: Mapping[int, int]) -> Adapter:
    """Share an adapter's requests among its versions."""
    async with writing(database) as connection:
        adapter = await adapter_of(connection, tenant_id, name)
        return await AdapterChanges(connection, datetime.now(UTC)).set_weights(adapter, weights)


async def rollback(database: AsyncEngine, tenant_id: str, name: str) -> Adapter:
    """Return to the weights before the last change."""
    async with writing(database) as connection:
        adapter = await adapter_of(connection, tenant_id, name)
        return await AdapterChanges(connection, datetime.now(UTC)).rollback(adapter)


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """An adapter in the simulated device's format."""

    digest: str
    bytes: int = 1


@dataclass(slots=True)
class AdapterReads:
    """Reads of adapters' files, in virtual time. `mean_s`: of an adapter; `factor` stretches it. `failing`: share
    of them that fail; all of them while it `fails`."""

    random: Random
    mean_s: float
    failing: float
    factor: float = 1.0
    fails: bool = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Under every engine of the block."""
        with patch.object(adapter_reading, "read_unchanged", self._read):
            yield

    def _read(self, source: AdapterSource, config: Any) -> str:
        """In the place of the engine's: the digest stands for the weights."""
        if digest_of(source.folder) != source.digest:
            raise UnsupportedAdapter("its files have changed")
        if wait_s := self.mean_s * self.factor * self.random.uniform(0, 2):
            threads.scheduler().sleep(wait_s)
        if self.random.random() < self.failing or self.fails:
            raise UnsupportedAdapter("the simulated files cannot be read")
        return source.digest
