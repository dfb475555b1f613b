"""Services around an engine, as the tests of the HTTP side need them: everything real but the keys and the prices."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from gateway.admission import Limiter, MemoryStore
from gateway.analytics import open_analytics
from gateway.billing.price_book import PriceBook
from gateway.billing.prices import PriceTerms, PriceVersion
from gateway.generation.engine_client import EngineClient
from gateway.generation.services import Services
from gateway.metering.journal.journal import Journal
from gateway.refusals.refusal_log import RefusalLog
from gateway.sessions import Sessions
from gateway.sessions.memory import MemorySessionStore
from gateway.telemetry.metrics import Metrics
from gateway.tenancy.key_watch import KeyWatch
from tests.support.refusal_table import RefusalTable

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class FixedPrices:
    """From (input, cached input, output) in dollars per million tokens, the same for every class."""

    def __init__(self, prices: Mapping[str, tuple[str, str, str]]) -> None:
        self._versions = [
            PriceVersion(
                f"{model}@1",
                LONG_AGO,
                PriceTerms.from_dollars(
                    model, Decimal(input), Decimal(output), cached_input=Decimal(cached), multipliers={}
                ),
            )
            for model, (input, cached, output) in prices.items()
        ]

    async def versions(self) -> Sequence[PriceVersion]:
        return self._versions


def price_book(prices: Mapping[str, tuple[str, str, str]]) -> PriceBook:
    book = PriceBook(FixedPrices(prices))
    asyncio.run(book.load())
    return book


def services_with(folder: Path, engine: EngineClient, authenticator: Any, **others: Any) -> Services:
    """Services with defaults for those that a test does not pass: no limits, and a small price for each model."""
    stats = getattr(engine, "stats", dict)
    made: dict[str, Any] = {
        "key_watch": KeyWatch(authenticator.why_ended),
        "limiter": Limiter(MemoryStore()),
        "prices": price_book(dict.fromkeys(engine.models, ("0.1", "0.05", "0.4"))),
        "journal": others.get("journal") or Journal(folder / "journal.db", min_free_bytes=0),
        "analytics": open_analytics("chdb://memory"),
        "relay": None,
        "sessions": Sessions(MemorySessionStore(), wait_s=0.2),
        "metrics": others.get("metrics") or Metrics(stats),
        "refusals": RefusalLog(RefusalTable(), "test"),
    }
    return Services(engine=engine, authenticator=authenticator, **made | others)
