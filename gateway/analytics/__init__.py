"""Analytics: usage events and refusals in ClickHouse, rollups of usage, and the queries on them.

`open_analytics` opens a store, a ClickHouse server or its engine in this process; `migrate` creates its tables. Queries
are in `usage` (events, totals, series), `latency` (percentiles), `routed` (routing decisions), `refusals` (refused
requests, and outcomes of all), `audit` (missing and duplicate events) and `rollups` (repair).
"""

from gateway.analytics.errors import (
    AnalyticsAway,
    AnalyticsError,
    AnalyticsInUse,
    AnalyticsRefused,
    AnalyticsSchemaMismatch,
    InvalidAnalyticsURL,
)
from gateway.analytics.opening import open_analytics
from gateway.analytics.schema import migrate
from gateway.analytics.store import MAX_INSERT_ROWS, Analytics

__all__ = [
    "MAX_INSERT_ROWS",
    "Analytics",
    "AnalyticsAway",
    "AnalyticsError",
    "AnalyticsInUse",
    "AnalyticsRefused",
    "AnalyticsSchemaMismatch",
    "InvalidAnalyticsURL",
    "migrate",
    "open_analytics",
]
