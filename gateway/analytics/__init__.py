"""Usage as ClickHouse keeps it: the events, what is summed from them, and how both are asked.

`open_analytics` gives a store, a ClickHouse server or its engine in this process; `migrate` makes its tables. What is
asked of them is in `usage` (events, totals, series), `audit` (what is missing or double) and `rollups` (repair).
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
