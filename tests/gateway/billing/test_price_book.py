"""Prices from memory: the newest version that has started, and what is known when the database is away."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.errors import NoPrice
from gateway.billing.price_book import PriceBook
from gateway.billing.prices import PriceTerms, PriceVersion, version_id
from gateway.tenancy import StoreUnavailable
from tests.support.billing import utc

START = utc("2026-11-21")
OFFSETS = st.integers(-100, 100)


class Source:
    """Versions in memory, that can be away."""

    def __init__(self, versions: Sequence[PriceVersion] = ()) -> None:
        self.versions_known = list(versions)
        self.away = False
        self.read = asyncio.Event()

    async def versions(self) -> Sequence[PriceVersion]:
        self.read.set()
        if self.away:
            raise StoreUnavailable("away")
        return list(self.versions_known)

    async def was_read_again(self) -> None:
        """Wait until the book has read the current versions and applied them."""
        for _ in range(2):
            self.read.clear()
            await self.read.wait()


def a_version(start: datetime, input: int = 1, model: str = "m") -> PriceVersion:
    return PriceVersion(version_id(model, start), start, PriceTerms(model, input, input, input))


def a_book(*versions: PriceVersion) -> PriceBook:
    book = PriceBook(Source(versions))
    asyncio.run(book.load())
    return book


@given(st.sets(OFFSETS, min_size=1), OFFSETS)
def test_the_newest_version_that_has_started_counts(starts: set[int], at: int) -> None:
    book = a_book(*(a_version(START + timedelta(seconds=start), 100 + start) for start in starts))
    started = [start for start in starts if start <= at]
    instant = START + timedelta(seconds=at)
    if started:
        price = book.price_of("m", "premium", instant)
        assert price.prompt == 3 * (100 + max(started))
        assert price.version == version_id("m", START + timedelta(seconds=max(started)))
        assert book.unpriced(["m"], instant) == ()
    else:
        assert book.unpriced(["m"], instant) == ("m",)
        with pytest.raises(NoPrice, match="m has no price"):
            book.price_of("m", "standard", instant)


def test_a_model_has_its_own_versions() -> None:
    book = a_book(a_version(START, 1, "m"), a_version(START, 2, "n"))
    assert book.price_of("n", "standard", START).prompt == 2
    assert book.unpriced(["n", "o", "m", "p"], START) == ("o", "p")


def test_the_price_of_one_version_and_class_is_one_object() -> None:
    book = a_book(a_version(START))
    assert book.price_of("m", "premium", START) is book.price_of("m", "premium", START + timedelta(days=1))
    assert Decimal(book.price_of("m", "premium", START).prompt) == 3


async def test_what_is_added_is_read_in_the_background() -> None:
    source = Source([a_version(START, 1)])
    book = PriceBook(source, refresh_s=0.001)
    await book.load()
    book.start()
    source.versions_known.append(a_version(START + timedelta(days=1), 2))
    await source.was_read_again()
    assert book.price_of("m", "standard", START).prompt == 1
    assert book.price_of("m", "standard", START + timedelta(days=1)).prompt == 2
    await book.aclose()


async def test_an_outage_keeps_what_is_known_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    source = Source([a_version(START, 1)])
    book = PriceBook(source, refresh_s=0.001)
    await book.load()
    book.start()
    with caplog.at_level(logging.WARNING):
        source.away = True
        await source.was_read_again()
        await source.was_read_again()
        assert book.price_of("m", "standard", START).prompt == 1
        source.away = False
        source.versions_known.append(a_version(START + timedelta(days=1), 2))
        await source.was_read_again()
        assert book.price_of("m", "standard", START + timedelta(days=1)).prompt == 2
    await book.aclose()
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "prices cannot be read again",
        "prices can be read again",
    ]


async def test_a_book_that_cannot_be_read_at_first_says_so() -> None:
    source = Source()
    source.away = True
    book = PriceBook(source)
    with pytest.raises(StoreUnavailable):
        await book.load()
    await book.aclose()
