"""The tenants of every run, with their keys, limits, credit, policies and adapters, in a database that each run has a
copy of."""

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import time_machine

from gateway.tenancy import open_database
from gateway.tenancy.limits import Limits, ScopeKind
from gateway.tenancy.policies import RoutingPolicy
from gateway.tenancy.schema import upgrade
from tests.support.writers import CreditWriter, LimitWriter, PriceWriter, RoutingPolicyWriter, TenantWriter
from tests.whole import adapters
from tests.whole.randomness import seeded

PEPPER = b"p" * 32
PRICES = {"large": ("1", "0.5", "2"), "small": ("0.1", "0.05", "0.2"), "far": ("2", "1", "3")}
"""Dollars per million tokens of input, cached input and output."""

TIERS = {"premium": "premium", "cascade": "premium"}
LIMITS = {
    "minute": Limits(requests_per_minute=12, tokens_per_minute=900),
    "daily": Limits(tokens_per_day=1500, concurrent=4),
    "spender": Limits(nanodollars_per_month=1_200_000),
}
CREDIT = {"prepaid": 900_000}
"""Nanodollars."""
POLICIES = {
    "economy": RoutingPolicy(degrade=True, degrade_near_budget=True),
    "cascade": RoutingPolicy(cascade_percent=60, degrade=True),
}
MADE_AT = datetime(2025, 1, 1, tzinfo=UTC)
"""Before any run."""
NAMES = ("premium", "plain", "minute", "daily", "spender", "prepaid", "economy", "cascade", "probe", "vip-probe")


@dataclass(frozen=True, slots=True)
class Template:
    """The database's bytes, the key and the id of each tenant, and the adapters."""

    database: bytes
    keys: Mapping[str, str]
    ids: Mapping[str, str]
    lives: tuple[adapters.Life, ...]


@cache
def template() -> Template:
    """Made once a process, and in each the same."""
    with tempfile.TemporaryDirectory() as folder, seeded(0), time_machine.travel(MADE_AT, tick=False):
        path = Path(folder) / "template.db"
        digests = adapters.write_files(Path(folder) / "adapters")
        keys, ids, lives = asyncio.run(_furnish(path, digests))
        return Template(path.read_bytes(), keys, ids, lives)


def key_of(tenant: str) -> str:
    return template().keys[tenant]


def id_of(tenant: str) -> str:
    return template().ids[tenant]


def name_of(tenant_id: str) -> str:
    return next(name for name, its in template().ids.items() if its == tenant_id)


def copy_database(folder: Path) -> Path:
    path = folder / "turnpike.db"
    path.write_bytes(template().database)
    return path


async def _furnish(
    path: Path, digests: Mapping[tuple[str, str, int], str]
) -> tuple[dict[str, str], dict[str, str], tuple[adapters.Life, ...]]:
    from gateway.config.settings import Settings

    url = f"sqlite+aiosqlite:///{path}"
    await upgrade(url)
    database = open_database(url)
    store, keys, ids = TenantWriter(database, PEPPER), {}, {}
    stated = Settings(prices=PRICES, data_dir=path.parent).prices
    await PriceWriter(database).declare(stated)
    for name in NAMES:
        tier = "premium" if name == "vip-probe" else TIERS.get(name, "standard")
        ids[name] = (await store.create_tenant(name, tier)).id
        keys[name] = (await store.create_key(name, "")).plaintext
        limits = LIMITS.get(name)
        if limits is not None:
            changes = {each: getattr(limits, each) for each in Limits.__slots__ if getattr(limits, each) is not None}
            await LimitWriter(database).set_limits(name, ScopeKind.TENANT, "", changes)
        if name in CREDIT:
            await CreditWriter(database).add(name, CREDIT[name], "paid", "first")
        if name in POLICIES:
            await RoutingPolicyWriter(database).change(name, lambda _, name=name: POLICIES[name])  # type: ignore[misc]
    lives = await adapters.furnish(database, ids, digests)
    tenant, adapter = adapters.LIMITED
    limit = {"tokens_per_day": adapters.LIMITED_TOKENS_PER_DAY}
    await LimitWriter(database).set_limits(tenant, ScopeKind.MODEL, adapter, limit)
    async with database.connect() as connection:
        await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        await connection.exec_driver_sql("PRAGMA journal_mode=DELETE")
    await database.dispose()
    return keys, ids, lives
