"""Queries of usage by dashboards and bills: their time in ClickHouse's engine over ten million events.

The events are of 30 days, 200 tenants with 3 keys each, 3 models and 2 classes, and come in through the tables' views
as all events do. Each query comes with the time of a plain sum over one column of all events, which is what this
machine takes to read eight bytes a row. Needs about 3 GB of disk.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

from gateway.analytics import Analytics, migrate, open_analytics
from gateway.analytics.sums import Dimension, Grain, TimeRange
from gateway.analytics.usage import events, series, totals
from gateway.metering.journal.journal_file import HOUR_MS

START_MS = 1_793_491_200_000  # 2026-11-01
DAY_MS = 24 * HOUR_MS
DAYS = 30
BATCH = 100_000
TENANTS = 200
REPEATS = 5

_INSERT = f"""
INSERT INTO usage_events
SELECT
    generateUUIDv4(number), 'bench', number, 1, concat('chatcmpl-', toString(number)),
    concat('tenant-', toString(intHash64(number) % {TENANTS})) AS tenant,
    concat(tenant, '-', toString(intHash64(number + 1) % 3)),
    if(intHash64(number) % {TENANTS} < {TENANTS // 4}, 'premium', 'standard') AS class, class,
    'auto', concat('model-', toString(intHash64(number + 2) % 3)) AS model, 'v', '',
    100 + intHash64(number + 3) % 900 AS prompt, prompt % 64 AS cached, 1 + intHash64(number + 4) % 500 AS completion,
    0, 0, 0, 50 + intHash64(number + 5) % 400, 2000, 10, 1000000, map(), 0, 'stop', concat(model, '@1'),
    (prompt - cached) * 100 + cached * 50 + completion * 400,
    fromUnixTimestamp64Milli({{start:Int64}} + toInt64(intDiv(number * {{span:Int64}}, {{rows:Int64}})), 'UTC')
FROM numbers({{from:UInt64}}, {{count:UInt64}})
SETTINGS max_insert_threads = 1
"""


async def fill(analytics: Analytics, rows: int) -> None:
    started = time.perf_counter()
    for first in range(0, rows, BATCH):
        parameters = {"start": START_MS, "span": DAYS * DAY_MS, "rows": rows, "from": first, "count": BATCH}
        await analytics.command(_INSERT, parameters)
    seconds = time.perf_counter() - started
    print(f"  {rows:,} events stored in {seconds:.0f} s, their sums by minute, hour and day with them")


def questions(analytics: Analytics) -> dict[str, Callable[[], Awaitable[Any]]]:
    end_ms = START_MS + DAYS * DAY_MS
    month, last_day, last_hour = (
        TimeRange(end_ms - length_ms, end_ms) for length_ms in (DAYS * DAY_MS, DAY_MS, HOUR_MS)
    )
    one = {Dimension.TENANT: "tenant-7"}
    return {
        "a month by day and tenant": lambda: series(analytics, Grain.DAY, month, by=[Dimension.TENANT]),
        "a month by day, model and class": lambda: series(
            analytics, Grain.DAY, month, by=[Dimension.MODEL, Dimension.TIER]
        ),
        "a month by hour, one tenant, by key": lambda: series(
            analytics, Grain.HOUR, month, by=[Dimension.KEY], only=one
        ),
        "a day by minute, by model": lambda: series(analytics, Grain.MINUTE, last_day, by=[Dimension.MODEL]),
        "the newest hundred requests of an hour": lambda: events(analytics, last_hour, newest_first=True),
        "the newest hundred requests of a tenant's month": lambda: events(
            analytics, month, only=one, newest_first=True
        ),
        "a tenant's month for its invoice": lambda: totals(analytics, month, tenant_id="tenant-7"),
    }


async def measure(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        analytics = open_analytics(f"chdb://{Path(folder) / 'usage'}")
        try:
            await migrate(analytics)
            await fill(analytics, rows)
            scan = await seconds_of(lambda: analytics.query("SELECT sum(cost_nanodollars) FROM usage_events"))
            print(f"  a plain sum over one column: {scan * 1e3:.0f} ms")
            for what, ask in questions(analytics).items():
                taken = await seconds_of(ask)
                print(f"  {what:50} {taken * 1e3:6.0f} ms, {taken / scan:5.1f} x the plain sum")
        finally:
            await analytics.aclose()


async def seconds_of(ask: Callable[[], Awaitable[Any]]) -> float:
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        await ask()
        taken.append(time.perf_counter() - started)
    return median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    options = parser.parse_args()
    print("questions to the store of usage, chDB with one thread (each under 1 s)")
    asyncio.run(measure(options.events))


if __name__ == "__main__":
    main()
