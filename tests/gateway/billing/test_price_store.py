"""Price versions, on SQLite and on PostgreSQL."""

import asyncio
from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.billing.errors import InvalidPrice, PriceRefused
from gateway.billing.price_book import PriceBook
from gateway.billing.prices import PriceTerms
from tests.support.billing import Clock, utc
from tests.support.writers import PriceWriter

NOW = utc("2026-11-21T12:00:00.123456")
CHEAP = PriceTerms.from_dollars("m", Decimal("0.15"), Decimal("0.60"), cached_input=Decimal("0.075"))
DEAR = PriceTerms.from_dollars(
    "m", Decimal(3), Decimal(15), multipliers={"premium": Decimal("1.50"), "batch": Decimal("0.5")}
)


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
def prices(database: AsyncEngine, clock: Clock) -> PriceWriter:
    return PriceWriter(database, now=clock)


async def test_versions_come_back_as_they_went(prices: PriceWriter) -> None:
    first = await prices.add(CHEAP, utc("2026-01-01"))
    now = await prices.add(DEAR)
    later = await prices.add(CHEAP, utc("2027-01-01"))
    assert await prices.versions() == (first, now, later)
    assert now.effective_from == utc("2026-11-21T12:00:00.123")
    assert now.id == "m@2026-11-21T12:00:00.123Z"


async def test_the_past_does_not_change(prices: PriceWriter) -> None:
    await prices.add(CHEAP, utc("2026-01-01"))
    for start in (utc("2025-12-01"), utc("2026-06-01"), NOW - timedelta(milliseconds=1)):
        with pytest.raises(PriceRefused, match="now"):
            await prices.add(DEAR, start)
    await prices.add(DEAR, utc("2027-01-01"))
    with pytest.raises(PriceRefused, match="instant"):
        await prices.add(CHEAP, utc("2027-01-01T00:00:00.000999"))
    await prices.add(CHEAP, utc("2026-12-01"))
    assert len(await prices.versions()) == 3


async def test_a_declaration_adds_what_differs(prices: PriceWriter, clock: Clock) -> None:
    declaration = {"m": [Decimal("0.15"), Decimal("0.075"), Decimal("0.60")], "n": [Decimal(1), Decimal(2)]}
    first = await prices.declare(declaration)
    assert [version.terms.model for version in first] == ["m", "n"]
    assert first[0].terms == CHEAP
    clock.now += timedelta(seconds=1)
    assert await prices.declare(declaration) == ()
    await prices.add(DEAR)
    clock.now += timedelta(seconds=1)
    (again,) = await prices.declare(declaration)
    assert again.terms == CHEAP


async def test_a_declaration_leaves_what_is_to_come(prices: PriceWriter, clock: Clock) -> None:
    await prices.add(CHEAP)
    to_come = await prices.add(DEAR, utc("2027-01-01"))
    assert await prices.declare({"m": [Decimal("0.15"), Decimal("0.075"), Decimal("0.60")]}) == ()
    assert (await prices.versions())[-1] == to_come


async def test_replicas_that_declare_together_add_one_version(prices: PriceWriter) -> None:
    added = await asyncio.gather(*(prices.declare({"m": [Decimal(1), Decimal(2)]}) for _ in range(6)))
    assert sorted(map(len, added)) == [0, 0, 0, 0, 0, 1]
    assert len(await prices.versions()) == 1


async def test_a_declaration_is_taken_whole_or_not_at_all(prices: PriceWriter) -> None:
    with pytest.raises(InvalidPrice, match="output"):
        await prices.declare({"m": [Decimal(1), Decimal(2)], "n": [Decimal(1), Decimal("0.0001")]})
    assert await prices.versions() == ()


async def test_a_book_reads_the_store(prices: PriceWriter) -> None:
    await prices.add(CHEAP)
    book = PriceBook(prices)
    await book.load()
    assert book.price_of("m", "premium", NOW).completion == 1800
