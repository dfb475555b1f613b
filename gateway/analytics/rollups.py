"""Repair of the rollups that dashboards read.

Materialized views add up each batch when it is stored, and a batch that is repeated with its token is added once. The
views cannot detect an event that arrives again in another batch; the table of events can. Reconciliation therefore
compares the rollups with the distinct events, and inserts the differences. Nothing is deleted, so readers never see a
gap.
"""

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
    """
    corrected = 0
    for grain in Grain:
        for unit in await find_drift(analytics, grain, window):
            corrected += await _correct(analytics, grain, unit)
    return corrected


async def _correct(analytics: Analytics, grain: Grain, unit: TimeRange) -> int:
    # State before differences: an insert in between makes this token stale, never the correction.
    [(corrections, events)] = await analytics.query(
        f"SELECT sum(corrections), sum(events) FROM {grain.table} WHERE {_BUCKETS_DURING}", unit.parameters
    )
    state = f"{grain.table}:{unit.start_ms}:{unit.end_ms}:{corrections}:{events}"
    rows: list[Row] = await analytics.query(
        f"{_differences(grain)} ORDER BY {_KEY_SQL} {PARTITIONWISE}", unit.parameters
    )
    for start in range(0, len(rows), MAX_INSERT_ROWS):
        batch = [(*row, 1) for row in rows[start : start + MAX_INSERT_ROWS]]
        columns = [*_KEY, *SUM_COLUMNS, "corrections"]
        await analytics.insert(grain.table, columns, batch, f"correction:{state}:{start}")
    return len(rows)


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
