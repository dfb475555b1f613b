"""Usage of past months, for the command line to invoice."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

from gateway.analytics import migrate, open_analytics
from gateway.billing.month import Month
from gateway.billing.price_store import PriceStore
from gateway.billing.prices import Price
from gateway.config.settings import load_settings
from gateway.metering.event import UsageEvent
from gateway.tenancy import open_database
from tests.support.billing import an_event
from tests.support.command_line import ok
from tests.support.usage_requests import insert

THIS_MONTH = Month.of(datetime.now(UTC))
MONTH = THIS_MONTH.plus(-2)


def use(*requests: tuple[Month, int], tenant: str = "acme", cost_off_by: int = 0) -> None:
    """Store usage of a tenant in the settings' analytics store: `requests` are months and numbers of prompt tokens."""
    (tenant_id,) = [each["id"] for each in json.loads(ok("tenant", "list", "--json")) if each["name"] == tenant]

    async def store() -> None:
        settings = load_settings()
        database = open_database(settings.database_url.get_secret_value())
        (version,) = await PriceStore(database).versions()
        await database.dispose()
        price: Price = version.price("standard")
        events: list[UsageEvent] = []
        for month, tokens in requests:
            at = month.start + timedelta(days=3)
            cost = price.of(tokens, 0, 0) + cost_off_by
            events.append(an_event(tenant_id, at, price, (tokens, 0, 0), cost_nanodollars=cost))
        analytics = open_analytics(settings.analytics_url.get_secret_value())
        await migrate(analytics)
        await insert(analytics, events)
        await analytics.aclose()

    asyncio.run(store())
