"""Usage in ClickHouse is what the same events are in memory, however often and in whatever order they came."""

import random
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.analytics import Analytics, migrate, open_analytics
from gateway.billing.analytics_usage import AnalyticsUsage
from gateway.billing.cost_view import divide_costs
from gateway.billing.month import Month
from gateway.billing.prices import Price, PriceTerms
from gateway.metering.event import UsageEvent
from tests.support.billing import Clock, RecordedUsage, an_event
from tests.support.usage_requests import insert
from tests.support.writers import InvoicingWriter, PriceWriter

SEPTEMBER, OCTOBER = Month(2026, 9), Month(2026, 10)
PRICES = [Price("m@1", 150, 75, 600), Price("m@2", 300, 150, 1200), Price("n@1", 2**40, 0, 2**40)]


@pytest.fixture(params=["embedded", "server"])
async def analytics(request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str) -> AsyncIterator[Analytics]:
    """Each of the stores, with its tables."""
    embedded = request.param == "embedded"
    store = open_analytics(
        f"chdb://{tmp_path / 'analytics'}" if embedded else request.getfixturevalue("clickhouse_url")
    )
    await migrate(store)
    yield store
    await store.aclose()


def some_events(count: int) -> list[UsageEvent]:
    """Of two tenants, around the end of a month; the same at each call."""
    chance = random.Random(7)
    return [
        an_event(
            chance.choice(["t1", "t2"]),
            SEPTEMBER.end + timedelta(milliseconds=chance.choice([-86_400_000, -1, 0, 1, 86_400_000])),
            chance.choice(PRICES),
            (100 + chance.randrange(1000), chance.randrange(100), chance.randrange(1000)),
            event_id=UUID(int=chance.getrandbits(128)),
            sequence=sequence,
            tier_served=chance.choice(["premium", "standard"]),
            adapter_id=chance.choice(["", "support:aaaaaaaaaaaa", "sql:bbbbbbbbbbbb"]),
            estimated=sequence % 3 == 0,
            engine_ns=chance.randrange(2**50),
            recompute_ns={tier: chance.randrange(2**40) for tier in ("premium", "batch") if chance.random() < 0.5},
        )
        for sequence in range(1, count + 1)
    ]


async def test_totals_are_those_of_the_events(analytics: Analytics) -> None:
    events = some_events(200)
    in_memory = RecordedUsage()
    in_memory.record(*events)
    await insert(analytics, events)
    await insert(analytics, [*reversed(events[50:120]), events[3]])
    usage = AnalyticsUsage(analytics)
    for tenant_id in ("t1", "t2", "nobody"):
        for months in ((SEPTEMBER, SEPTEMBER), (OCTOBER, OCTOBER), (SEPTEMBER.plus(-12), OCTOBER)):
            span = (months[0].start, months[1].end)
            assert await usage.totals(tenant_id, *span) == await in_memory.totals(tenant_id, *span)
        for since in {each.occurred_at - timedelta(milliseconds=ms) for each in events[:5] for ms in (0, 1, 2)}:
            spent = await usage.spent_nanodollars(tenant_id, since)
            assert spent == await in_memory.spent_nanodollars(tenant_id, since)


async def test_engine_time_is_that_of_the_events(analytics: Analytics) -> None:
    events = some_events(50)
    in_memory = RecordedUsage()
    in_memory.record(*events)
    await insert(analytics, events)
    await insert(analytics, events[10:30])
    span = (SEPTEMBER.start, SEPTEMBER.end)
    stored = await AnalyticsUsage(analytics).engine_times(*span)
    assert divide_costs(stored, 10**9) == divide_costs(await in_memory.engine_times(*span), 10**9)


async def test_replays_and_new_prices_keep_an_invoice(analytics: Analytics, database: AsyncEngine, acme: str) -> None:
    clock = Clock(SEPTEMBER.start)
    prices = PriceWriter(database, now=clock)
    price = (await prices.add(PriceTerms.from_dollars("m", Decimal(1), Decimal(2)))).price("standard")
    events = [an_event(acme, SEPTEMBER.start + timedelta(hours=n), price, (n, n // 2, n)) for n in range(1, 60)]
    await insert(analytics, events[:-1])
    clock.now = OCTOBER.start + timedelta(days=1)
    invoicing = InvoicingWriter(database, AnalyticsUsage(analytics), grace_s=0, now=clock)
    invoice = await invoicing.finalise("acme", SEPTEMBER)
    assert invoice is not None
    assert invoice.statement.total_nanodollars == sum(event.cost_nanodollars for event in events[:-1])
    assert invoice.statement.events == len(events) - 1

    await insert(analytics, list(reversed(events[:-1])))
    await insert(analytics, events[5:40])
    await analytics.command("OPTIMIZE TABLE usage_events FINAL")
    await prices.add(PriceTerms.from_dollars("m", Decimal(7), Decimal(8)))
    assert await invoicing.finalise("acme", SEPTEMBER) == invoice
    rest = await invoicing.compute_uninvoiced("acme", SEPTEMBER)
    assert (rest.lines, rest.discrepancies) == ((), ())

    await insert(analytics, events)
    (line,) = (await invoicing.compute_uninvoiced("acme", SEPTEMBER)).lines
    assert (line.usage.events, line.amount_nanodollars) == (1, events[-1].cost_nanodollars)
