"""Prices for every request, from memory.

Every replica knows a version within REFRESH_S of its creation, so one with a later start takes effect on all replicas
at that instant. Each replica charges one that starts at once from its next refresh on.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from gateway.billing.errors import NoPrice
from gateway.billing.prices import Price, PriceVersion, multiplied
from gateway.common.refresher import REFRESH_S, Refresher


class PriceSource(Protocol):
    """Source of versions: `PriceStore`, or a stand-in. Raises `StoreUnavailable`."""

    async def versions(self) -> Sequence[PriceVersion]:
        """All price versions."""


class PriceBook:
    """Prices of all models at any instant. One per process, on one event loop: `load` once, then `start`; `aclose` ends
    the refreshing."""

    def __init__(self, source: PriceSource, *, refresh_s: float = REFRESH_S) -> None:
        self._source = source
        self._timelines: dict[str, _Timeline] = {}
        self._refresher = Refresher("prices", self.load, refresh_s)

    async def load(self) -> None:
        """Read all versions.

        Raises:
            StoreUnavailable: the database does not answer; the known versions stay.
        """
        by_model: dict[str, list[PriceVersion]] = {}
        for version in await self._source.versions():
            by_model.setdefault(version.terms.model, []).append(version)
        self._timelines = {model: _Timeline(versions) for model, versions in by_model.items()}

    @property
    def models(self) -> frozenset[str]:
        """Models that have or had a price."""
        return frozenset(self._timelines)

    def start(self) -> None:
        """Refresh in the background. A failed read keeps the known versions, and is logged once per outage."""
        self._refresher.start()

    async def aclose(self) -> None:
        """End the refreshing."""
        await self._refresher.aclose()

    def price_of(self, model: str, tier: str, at: datetime) -> Price:
        """The price by the newest version that has started at `at`.

        Raises:
            NoPrice: no version has started.
        """
        timeline = self._timelines.get(model)
        prices = None if timeline is None else timeline.at(at)
        if prices is None:
            raise NoPrice(f"the model {model} has no price")
        return prices.of(tier)

    def price_of_adapter(self, adapter_id: str, model: str, multiplier: Decimal, tier: str, at: datetime) -> Price:
        """The price of an adapter: its own, which is stated for its id, or `multiplier` times that of its base model.

        Raises:
            NoPrice: neither has started.
        """
        own = self._timelines.get(adapter_id)
        if own is not None and (prices := own.at(at)) is not None:
            return prices.of(tier)
        return multiplied(self.price_of(model, tier, at), multiplier)

    def unpriced(self, models: Iterable[str], at: datetime) -> tuple[str, ...]:
        """The models without a price at that instant. A model is free only if a version states a price of 0."""
        timelines = {model: self._timelines.get(model) for model in models}
        return tuple(model for model, known in timelines.items() if known is None or known.at(at) is None)


class _Timeline:
    """The versions of one model by start."""

    def __init__(self, versions: Sequence[PriceVersion]) -> None:
        ordered = sorted(versions, key=lambda version: version.effective_from)
        self._starts = [version.effective_from for version in ordered]
        self._prices = [_Prices(version) for version in ordered]

    def at(self, instant: datetime) -> "_Prices | None":
        newest = bisect_right(self._starts, instant) - 1
        return None if newest < 0 else self._prices[newest]


class _Prices:
    """One version's prices by class, each computed once."""

    def __init__(self, version: PriceVersion) -> None:
        self._version = version
        self._by_tier: dict[str, Price] = {}

    def of(self, tier: str) -> Price:
        price = self._by_tier.get(tier)
        if price is None:
            price = self._by_tier[tier] = self._version.price(tier)
        return price
