"""Credit, on SQLite and on PostgreSQL."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.billing.credit import CreditBalance
from gateway.billing.errors import IdempotencyConflict, InvalidAmount, InvalidReason
from gateway.billing.money import MAX_NANODOLLARS
from gateway.billing.prices import Price
from gateway.tenancy import UnknownTenant
from tests.support.billing import Clock, RecordedUsage, an_event, utc
from tests.support.writers import CreditWriter


@pytest.fixture
def clock() -> Clock:
    return Clock(utc("2026-11-21"))


@pytest.fixture
def credit(database: AsyncEngine, clock: Clock) -> CreditWriter:
    return CreditWriter(database, now=clock)


async def test_a_tenant_is_prepaid_from_its_first_entry_on(credit: CreditWriter, acme: str, clock: Clock) -> None:
    assert await credit.granted_nanodollars(acme) is None
    assert await credit.balance("acme", RecordedUsage()) is None
    grant = await credit.add("acme", 100, "paid", "1")
    clock.now += timedelta(seconds=1)
    correction = await credit.add("acme", -100, "by mistake", "2")
    assert await credit.granted_nanodollars(acme) == 0
    assert await credit.entries("acme") == (grant, correction)


async def test_the_balance_is_grants_less_later_spending(credit: CreditWriter, acme: str, clock: Clock) -> None:
    await credit.add("acme", 5000, "paid", "1")
    first = clock.now
    clock.now += timedelta(hours=1)
    await credit.add("acme", 1000, "paid", "2")
    usage = RecordedUsage()
    price = Price("m@v", 1000, 1000, 1000)
    usage.record(
        an_event(acme, first, price, (7, 0, 0), total_latency_ms=1),
        an_event(acme, first, price, (2, 0, 4), total_latency_ms=0),
        an_event(acme, first + timedelta(hours=2), price, (1, 0, 0), total_latency_ms=1000),
        an_event("other", clock.now, price, (9, 0, 9)),
    )
    balance = await credit.balance("acme", usage)
    assert balance == CreditBalance(granted_nanodollars=6000, spent_nanodollars=7000)
    assert balance.left_nanodollars == -1000


async def test_the_same_key_is_the_same_entry(credit: CreditWriter, acme: str) -> None:
    made = await asyncio.gather(*(credit.add("acme", 100, "paid", "k") for _ in range(6)))
    assert len(set(made)) == 1
    assert await credit.granted_nanodollars(acme) == 100
    for amount, reason in ((101, "paid"), (100, "else")):
        with pytest.raises(IdempotencyConflict):
            await credit.add("acme", amount, reason, "k")


async def test_refusals(credit: CreditWriter, acme: str) -> None:
    with pytest.raises(UnknownTenant):
        await credit.add("nobody", 1, "paid", "k")
    with pytest.raises(InvalidAmount):
        await credit.add("acme", 0, "paid", "k")
    for reason, key in (("", "k"), ("paid", ""), ("a\0", "k"), ("paid", "k" * 129)):
        with pytest.raises(InvalidReason):
            await credit.add("acme", 1, reason, key)
    await credit.add("acme", MAX_NANODOLLARS, "paid", "k")
    with pytest.raises(InvalidAmount, match=r"at most 9007199\.254740991"):
        await credit.add("acme", 1, "paid", "l")
    assert await credit.granted_nanodollars(acme) == MAX_NANODOLLARS
