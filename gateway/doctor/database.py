"""Checks the SQL database: connection, schema and required contents."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

import migrations
from gateway.billing.price_book import PriceBook
from gateway.billing.price_store import PriceStore
from gateway.config.pepper import UnusablePepper, load_pepper, pepper_path
from gateway.config.service_classes import unserved_tiers
from gateway.config.settings import Settings
from gateway.doctor.clock import skew_s, with_skew
from gateway.doctor.finding import DEADLINE_S, Finding, failure, ok, warning
from gateway.doctor.models import served
from gateway.errors import OperatorError
from gateway.extras import MissingExtra, install
from gateway.management.operations.admin_keys import AdminKeyStore
from gateway.process.catalog import DEFAULT_PRICES
from gateway.tenancy import TenantStore, open_database
from gateway.tenancy.database import answering
from gateway.tenancy.schema import current_revision
from gateway.tenancy.tiers import count_tenants_by_tier


def database(settings: Settings) -> Iterator[Finding]:
    kind, _, rest = settings.database_url.get_secret_value().partition("+")
    path = Path(rest.partition(":///")[2].partition("?")[0])
    if kind == "sqlite" and not path.exists():
        yield ok("database", f"SQLite, made on first use, in {path}")
        yield _prices(settings, frozenset())
        yield _admin_keys(0)
        return
    try:
        yield from asyncio.run(_examined(settings, kind))
    except TimeoutError:
        yield failure("database", f"{kind} does not answer within {DEADLINE_S:.0f} s", _REMEDY)
    except MissingExtra as error:
        yield failure("database", str(error), install("postgres"))
    except OperatorError as error:
        yield failure("database", f"{kind}: {error}", _REMEDY)


_REMEDY = "start it, or set TURNPIKE_DATABASE_URL"


async def _examined(settings: Settings, kind: str) -> list[Finding]:
    engine = open_database(settings.database_url.get_secret_value())
    try:
        async with asyncio.timeout(DEADLINE_S):
            version, skew = await _server(engine)
            revision = await current_revision(engine)
            if revision != migrations.HEAD:
                return [with_skew(_schema(f"{kind} {version}", revision), skew)]
            contents = await _contents(settings, engine, f"{kind} {version}, at revision {revision}")
            prices = _prices(settings, await _priced(settings, engine))
            keys = await AdminKeyStore(engine, b"").list_all()
            return [with_skew(contents, skew), prices, _admin_keys(sum(key.revoked_at is None for key in keys))]
    finally:
        await engine.dispose()


async def _server(engine: AsyncEngine) -> tuple[str, float]:
    """The server's version and its clock's lead in seconds, 0 for SQLite."""
    with answering():
        async with engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                return str(await connection.scalar(text("SELECT sqlite_version()"))), 0.0
            version = str(await connection.scalar(text("SHOW server_version"))).partition(" ")[0]
            asked_s = time.time()
            now_s = await connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())"))
            return version, skew_s(float(now_s or 0), asked_s, time.time())


def _schema(server: str, revision: str | None) -> Finding:
    if revision is not None and revision > migrations.HEAD:
        detail = f"{server}, at revision {revision}: a newer version of this program has been here"
        return failure("database", detail, "install that version, or restore the database from before it")
    detail = f"{server}, at revision {revision or 'none'}, not {migrations.HEAD}"
    return warning("database", detail, "turnpike db upgrade; turnpike serve does it too")


async def _contents(settings: Settings, engine: AsyncEngine, server: str) -> Finding:
    if settings.key_pepper is not None or pepper_path(settings).exists():
        try:
            strangers = await TenantStore(engine, load_pepper(settings)).count_keys_of_other_peppers()
        except UnusablePepper:
            strangers = 0  # reported by its own check
        if strangers:
            detail = f"{server}, but {strangers} keys were made under another pepper and are refused"
            return warning("database", detail, "set TURNPIKE_KEY_PEPPER to that one, or make new keys")
    unserved = unserved_tiers(settings.service_classes, await count_tenants_by_tier(engine))
    if unserved:
        tiers = ", ".join(f"{tier} ({count})" for tier, count in unserved.items())
        detail = f"{server}, but tenants have tiers that are no service class and are refused: {tiers}"
        return warning("database", detail, "add the class to service_classes, or change their tier")
    return ok("database", server)


async def _priced(settings: Settings, engine: AsyncEngine) -> frozenset[str]:
    """The served models with a price in the database."""
    book = PriceBook(PriceStore(engine))
    await book.load()
    names = served(settings)
    return frozenset(names) - frozenset(book.unpriced(names, datetime.now(UTC)))


def _prices(settings: Settings, priced: frozenset[str]) -> Finding:
    names = served(settings)
    known = priced | settings.prices.keys() | (frozenset() if settings.served_names else DEFAULT_PRICES.keys())
    unpriced = [name for name in names if name not in known]
    if unpriced:
        detail = f"none for {', '.join(unpriced)}, and a model without one is not served"
        return failure("prices", detail, f"turnpike price set {unpriced[0]} --input DOLLARS --output DOLLARS")
    return ok("prices", f"for {', '.join(names)}")


def _admin_keys(count: int) -> Finding:
    if count == 0:
        remedy = "turnpike admin-key create --role admin NAME"
        return warning("administrators", "no key exists, so the admin API rejects all requests", remedy)
    return ok("administrators", f"{count} {'key' if count == 1 else 'keys'}")
