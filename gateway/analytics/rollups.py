"""Repair of the rollups that dashboards read.

Materialized views add up each batch when it is stored, and a batch that is repeated with its token is added once. The
views cannot detect an event that arrives again in another batch, and miss a batch if the server is killed after it has
logged the token and before it has stored the sums; the table of events is right in both cases. `ReconciliationMonitor`
therefore compares the rollups with the distinct events, and inserts the differences. Nothing is deleted, so readers
never see a gap.
"""

from collections.abc import Sequence

from gateway.analytics.store import MAX_INSERT_ROWS, Analytics, Row
from gateway.analytics.sums import (
    DISTINCT_EVENTS,
    DURING,
    PARTITIONWISE,
    SUM_COLUMNS,
    SUMS_OF_EVENTS,
    Dimension,
    Grain,
    TimeRange,
    instant,
)

MAX_ATTEMPTS = 10
"""Bound on the inserts of one correction, each under a token of its own."""

_KEY = ("bucket", *(dimension.value for dimension in Dimension))
_KEY_SQL = ", ".join(_KEY)
_BUCKETS_DURING = f"bucket >= {instant('start_ms')} AND bucket < {instant('end_ms')}"
_HOUR_MS = Grain.HOUR.length_ms


async def find_drift(analytics: Analytics, grain: Grain, window: TimeRange) -> list[TimeRange]:
    """The ranges in a window where the rollups differ from the distinct events: whole hours, or days for `Grain.DAY`.
    Ordered.

    An event that is being stored may be in one and not yet in the other, so the window should be in the past.
    """
    unit_ms = _unit_ms(grain)
    rows = await analytics.query(
        f"""
        SELECT DISTINCT intDiv(toUnixTimestamp(bucket) * 1000, {unit_ms}) AS unit
        FROM ({_differences(grain)}) ORDER BY unit
        {PARTITIONWISE}
        """,
        window.widened_to(unit_ms).parameters,
    )
    return [TimeRange(unit * unit_ms, (unit + 1) * unit_ms) for (unit,) in rows]


async def rebuild(analytics: Analytics, window: TimeRange) -> int:
    """Correct the rollups of a window in every grain, widened to whole hours and days. Returns the number of wrong
    sums.

    The window must be past: no sink may be storing events of it. Two processes may rebuild at once, and each may be
    killed: a correction names the state that it corrects, and is stored once per state.

    Raises:
        AnalyticsAway: the outcome is unknown; repeat it.
    """
    corrected = 0
    for grain in Grain:
        for unit in await find_drift(analytics, grain, window):
            corrected += await _correct(analytics, grain, unit)
    return corrected


async def _correct(analytics: Analytics, grain: Grain, unit: TimeRange) -> int:
    # State before differences: an insert in between makes this token stale, never the correction.
    state = await _state(analytics, grain, unit)
    rows: list[Row] = await analytics.query(
        f"{_differences(grain)} ORDER BY {_KEY_SQL} {PARTITIONWISE}", unit.parameters
    )
    for attempt in range(MAX_ATTEMPTS):
        # Later attempts: the server had logged the token before it was killed, and has dropped the rows as stored.
        if not rows or await _state(analytics, grain, unit) != state:
            break
        token = f"correction:{grain.table}:{unit.start_ms}:{unit.end_ms}:{state}:{attempt}"
        await _insert_corrections(analytics, grain, rows, token)
    return len(rows)


async def _state(analytics: Analytics, grain: Grain, unit: TimeRange) -> str:
    """Identity of the rollups of a unit: every correction changes it."""
    [(corrections, events)] = await analytics.query(
        f"SELECT sum(corrections), sum(events) FROM {grain.table} WHERE {_BUCKETS_DURING}", unit.parameters
    )
    return f"{corrections}:{events}"


async def _insert_corrections(analytics: Analytics, grain: Grain, rows: Sequence[Row], token: str) -> None:
    columns = [*_KEY, *SUM_COLUMNS, "corrections"]
    for start in range(0, len(rows), MAX_INSERT_ROWS):
        batch = [(*row, 1) for row in rows[start : start + MAX_INSERT_ROWS]]
        await analytics.insert(grain.table, columns, batch, f"{token}:{start}")


def _differences(grain: Grain) -> str:
    """SELECT statement of the differences to add to each wrong sum."""
    negated = ", ".join(f"-sum(rollup.{name}) AS {name}" for name in SUM_COLUMNS)
    summed = ", ".join(f"sum(side.{name}) AS {name}" for name in SUM_COLUMNS)
    wrong = " OR ".join(f"{name} != 0" for name in SUM_COLUMNS)
    dimensions = ", ".join(_KEY[1:])
    return f"""
        SELECT {_KEY_SQL}, {summed}
        FROM
        (
            SELECT toDateTime({grain.start_of}(event.occurred_at), 'UTC') AS bucket, {dimensions}, {SUMS_OF_EVENTS}
            FROM {DISTINCT_EVENTS} WHERE {DURING} GROUP BY {_KEY_SQL}
            UNION ALL
            SELECT {_KEY_SQL}, {negated}
            FROM {grain.table} AS rollup WHERE {_BUCKETS_DURING} GROUP BY {_KEY_SQL}
        ) AS side
        GROUP BY {_KEY_SQL} HAVING {wrong}
    """


def _unit_ms(grain: Grain) -> int:
    """Length of a correction: always the same units, so concurrent rebuilds name the same state."""
    return max(grain.length_ms, _HOUR_MS)
