"""Usage that a test's pages have to show."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.console.house import House
from tests.support.usage_samples import Event, event, store


def ago_ms(**span: float) -> int:
    """Unix milliseconds of a moment so long ago: `ago_ms(hours=2)`."""
    return int((datetime.now(UTC) - timedelta(**span)).timestamp() * 1000)


async def used(house: House, *events: Event) -> None:
    await store(house.services.analytics, events)


def of_tenant(house: House, name: str, sequence: int, at_ms: int, **fields: Any) -> Event:
    """An event of one of the house's tenants, by its key there."""
    key_id = house.keys[name].split("-")[1]
    return event(sequence, at_ms, **({"tenant_id": house.tenant[name].id, "key_id": key_id} | fields))
