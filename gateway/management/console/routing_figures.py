"""Charts and sums of routing decisions, and of the cost that they saved."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.analytics.sums import Grain
from gateway.billing.errors import NoPrice
from gateway.billing.price_book import PriceBook
from gateway.management.console.charts import Chart, Series, stacked_bars
from gateway.management.console.formatting import percent, short, whole
from gateway.management.console.time_axis import place_name, time_labels
from gateway.management.console.usage_figures import MAX_SERIES, OTHERS, bucket_starts
from gateway.routing.names import ModelNames, Pair

Share = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RouteLine:
    """All requests that one model answered for one reason. `saved_nanodollars`: what the large model of the pair would
    have cost more."""

    model: str
    reason: str
    events: int
    share: str
    tokens: int
    cost_nanodollars: int
    saved_nanodollars: int


@dataclass(frozen=True, slots=True)
class RoutingFigures:
    """`all_large_nanodollars`: what all would have cost if large models alone had answered, by the same tokens."""

    events: int
    cost_nanodollars: int
    saved_nanodollars: int
    lines: tuple[RouteLine, ...]
    charts: tuple[Chart, ...]

    @property
    def all_large_nanodollars(self) -> int:
        return self.cost_nanodollars + self.saved_nanodollars


class Savings:
    """Cost saved by small models, at the prices of the beginning of each bucket. Never negative, as in the metrics of
    routing."""

    def __init__(self, names: ModelNames, prices: PriceBook) -> None:
        self._names = names
        self._prices = prices

    def of(self, share: Share) -> int:
        """Nanodollars."""
        large = self.large_of(share)
        if large is None or share["served_model"] in self._names.models_of(large):
            return 0
        model = self._names.models_of(large)[0]
        try:
            price = self._prices.price_of(model, share["tier_served"], datetime.fromisoformat(share["start"]))
        except NoPrice:
            return 0
        cost = price.of(share["prompt_tokens"], share["cached_tokens"], share["completion_tokens"])
        return max(0, cost - int(share["cost_nanodollars"]))

    def large_of(self, share: Share) -> str | None:
        """The large model of the pair of which one answered; None: no pair had part in it."""
        requested, routed = share["requested_model"], share["routed_model"]
        target = self._names.find(requested, {})
        if isinstance(target, Pair):
            return target.large
        if isinstance(target, str):
            return target if target != routed else None
        # A tenant's own name, which may be for a pair.
        return next((large for large, small in self._names.small_of.items() if routed in (large, small)), None)


def routing_figures(answer: Mapping[str, Any], savings: Savings) -> RoutingFigures:
    """`answer` is what `readRouteShares` says."""
    shares: Sequence[Share] = answer["data"]
    grain, starts = Grain(answer["bucket"]), bucket_starts(answer)
    places = [place_name(start, grain) for start in starts]
    events = sum(share["events"] for share in shares)
    members: dict[tuple[str, str], list[Share]] = defaultdict(list)
    for share in shares:
        members[share["served_model"], share["route_reason"]].append(share)
    lines = [
        RouteLine(
            model,
            reason,
            count := sum(each["events"] for each in some),
            percent(count, events),
            sum(each["prompt_tokens"] + each["completion_tokens"] for each in some),
            sum(each["cost_nanodollars"] for each in some),
            sum(map(savings.of, some)),
        )
        for (model, reason), some in members.items()
    ]
    return RoutingFigures(
        events,
        sum(line.cost_nanodollars for line in lines),
        sum(line.saved_nanodollars for line in lines),
        tuple(sorted(lines, key=lambda line: (-line.events, line.model, line.reason))),
        (
            _chart("Requests by model", shares, starts, places, lambda share: str(share["served_model"])),
            _chart("Requests by reason", shares, starts, places, lambda share: str(share["route_reason"])),
        ),
    )


def _chart(
    title: str, shares: Sequence[Share], starts: Sequence[str], places: Sequence[str], of: Callable[[Share], str]
) -> Chart:
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for share in shares:
        counts[of(share)][share["start"]] += share["events"]
    ordered = sorted(counts, key=lambda name: (-sum(counts[name].values()), name))
    series = [Series(name, [counts[name][start] for start in starts]) for name in ordered[:MAX_SERIES]]
    if rest := ordered[MAX_SERIES:]:
        series.append(Series(OTHERS, [sum(counts[name][start] for name in rest) for start in starts]))
    return stacked_bars(title, places, series, whole, short, time_labels(starts))
