"""The overview's figures of the last 24 hours, and of today next to yesterday's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.analytics.refusals import OutcomeCounts, outcomes
from gateway.analytics.sums import Grain, TimeRange
from gateway.common.timestamps import unix_ms, utc_from_ms
from gateway.management.console.charts import Chart, Curve, Series, line_chart, stacked_bars
from gateway.management.console.context import ConsoleContext
from gateway.management.console.filters import Reading, reading
from gateway.management.console.formatting import percent, short, short_money, whole
from gateway.management.console.latency_figures import LatencyFigures, latency_chart, read_latencies
from gateway.management.console.names import names_of
from gateway.management.console.screens import PageRequest
from gateway.management.console.time_axis import place_name, time_labels
from gateway.management.console.usage_figures import MAX_SERIES, OTHERS, Group, grouped, summed
from gateway.management.operations.operations import typed_errors
from gateway.management.operations.timestamps import instant

SHOWN_GROUPS = 8
"""Models, and tenants, by what they cost today: of the rest there is the sum."""
HOURS = 24

Point = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Day:
    """Usage since midnight UTC, by model and, for administrators, by tenant; the most expensive first. `yesterday`:
    until the same time of day."""

    total: Group
    yesterday: Group
    models: Sequence[Group]
    tenants: Sequence[Group]


@dataclass(frozen=True, slots=True)
class Recent:
    """The last 24 hours. `refused`, `failed`: shares of all requests."""

    requests: int
    refused: str
    failed: str
    latencies: LatencyFigures
    charts: tuple[Chart, ...]


async def day_figures(context: ConsoleContext, page_request: PageRequest) -> Day:
    now = context.now().astimezone(UTC)
    midnight = datetime.combine(now, datetime.min.time(), UTC)
    read = reading(page_request)
    today = {"start": instant(midnight), "end": instant(midnight + timedelta(days=1)), "bucket": Grain.DAY.value}
    by_model = (await read("readUsage", query={**today, "by": "model"}))["data"]
    models = grouped(by_model, "model", {})[:SHOWN_GROUPS]
    total = Group(None, "all", summed(by_model))
    yesterday = Group(None, "all", summed(await _until(read, midnight - timedelta(days=1), now - timedelta(days=1))))
    if page_request.tenant is not None:
        return Day(total, yesterday, models, ())
    by_tenant = (await read("readUsage", query={**today, "by": "tenant"}))["data"]
    names = await names_of(context, page_request, tenants=[each["tenant"] for each in by_tenant])
    return Day(total, yesterday, models, grouped(by_tenant, "tenant", names.tenants)[:SHOWN_GROUPS])


async def _until(read: Reading, start: datetime, end: datetime) -> list[Point]:
    """Usage from a midnight to a minute of the same day."""
    minutes = int((end - start) / timedelta(minutes=1))
    if minutes == 0:
        return []
    window = {"start": instant(start), "end": instant(start + timedelta(minutes=minutes)), "bucket": Grain.MINUTE.value}
    return list((await read("readUsage", query=window))["data"])


async def recent_figures(context: ConsoleContext, page_request: PageRequest) -> Recent | None:
    """None: no request in this time."""
    now = context.now()
    window = TimeRange(unix_ms(now - timedelta(hours=HOURS - 1)), unix_ms(now) + 1).widened_to(Grain.HOUR.length_ms)
    starts_ms = range(window.start_ms, window.end_ms, Grain.HOUR.length_ms)
    starts = [instant(utc_from_ms(each)) for each in starts_ms]
    tenant_id = None if page_request.tenant is None else page_request.tenant.tenant_id
    with typed_errors():
        counts = {
            each.bucket_ms: each for each in await outcomes(context.analytics, Grain.HOUR, window, tenant_id=tenant_id)
        }
    if not counts:
        return None
    hours = [counts.get(each, OutcomeCounts(each, 0, 0, 0, 0)) for each in starts_ms]
    read = reading(page_request)
    query = {"start": starts[0], "end": instant(utc_from_ms(window.end_ms))}
    latencies = await read_latencies(read, query, None)
    assert latencies is not None, "a day is short enough"
    by_tier = (await read("readLatencies", query={**query, "bucket": Grain.HOUR.value, "by": "tier"}))["data"]
    by_model = (await read("readUsage", query={**query, "bucket": Grain.HOUR.value, "by": "model"}))["data"]
    requests, refused, failed = (
        sum(amount(each) for each in hours)
        for amount in (_requests, lambda each: each.refused, lambda each: each.failed)
    )
    return Recent(
        requests,
        percent(refused, requests),
        percent(failed, requests),
        latencies,
        (
            outcome_chart(hours, starts),
            token_rate_chart(by_model, starts, unix_ms(now)),
            spend_chart(await _by_hour(read, starts[0], hours=-HOURS), starts),
            latency_chart("Time to the first token, by class", by_tier, starts, Grain.HOUR, "ttft_ms", "tier"),
        ),
    )


async def _by_hour(read: Reading, start: str, hours: int) -> Sequence[Point]:
    """Usage by hour from `hours` after `start` until now."""
    begin = instant(datetime.fromisoformat(start) + timedelta(hours=hours))
    return list((await read("readUsage", query={"start": begin, "bucket": Grain.HOUR.value}))["data"])


def spend_chart(points: Sequence[Point], starts: Sequence[str]) -> Chart:
    """Spend by hour, and at the same hour of the day before."""
    spend = {point["start"]: point["cost_nanodollars"] for point in points}
    before = [instant(datetime.fromisoformat(start) - timedelta(hours=HOURS)) for start in starts]
    curves = [
        Curve("last 24 hours", [spend.get(start, 0) for start in starts], 0),
        Curve("24 hours before", [spend.get(start, 0) for start in before], 7, dashed=True),
    ]
    places = [place_name(start, Grain.HOUR) for start in starts]
    return line_chart("Spend by hour", places, curves, lambda amount: short_money(amount or 0), time_labels(starts))


def outcome_chart(hours: Sequence[OutcomeCounts], starts: Sequence[str]) -> Chart:
    """Requests by how they ended."""
    series = [
        Series("served", [each.served for each in hours]),
        Series("refused", [each.refused for each in hours], tone="warn"),
        Series("failed", [each.failed for each in hours], tone="bad"),
        Series("client gone", [each.cancelled for each in hours], tone="c7"),
    ]
    places = [place_name(start, Grain.HOUR) for start in starts]
    return stacked_bars("Requests", places, series, whole, short, time_labels(starts))


def token_rate_chart(points: Sequence[Point], starts: Sequence[str], now_ms: int) -> Chart:
    """Output tokens per second by model, of the hour in progress over its time until now."""
    tokens: dict[str, dict[str, int]] = {}
    for point in points:
        tokens.setdefault(point["model"], {})[point["start"]] = point["completion_tokens"]
    ordered = sorted(tokens, key=lambda model: (-sum(tokens[model].values()), model))
    shown = {model: [model] for model in ordered[:MAX_SERIES]} | (
        {OTHERS: ordered[MAX_SERIES:]} if ordered[MAX_SERIES:] else {}
    )
    lengths_s = [
        max(1.0, min(Grain.HOUR.length_ms, now_ms - unix_ms(datetime.fromisoformat(start))) / 1000) for start in starts
    ]
    series = [
        Series(
            name,
            [
                sum(tokens[model].get(start, 0) for model in models) / length_s
                for start, length_s in zip(starts, lengths_s, strict=True)
            ],
        )
        for name, models in shown.items()
    ]
    places = [place_name(start, Grain.HOUR) for start in starts]
    return stacked_bars("Output tokens/s", places, series, _rate, short, time_labels(starts), totals=False)


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.3g}"


def _requests(counts: OutcomeCounts) -> int:
    return counts.served + counts.refused + counts.failed + counts.cancelled
