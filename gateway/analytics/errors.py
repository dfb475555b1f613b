"""Errors of the analytics store. Messages are one line and never contain a password."""

from gateway.errors import OperatorError


class AnalyticsError(OperatorError):
    """Base class of this package's errors."""


class InvalidAnalyticsURL(AnalyticsError):
    """The URL names no kind of store."""


class AnalyticsAway(AnalyticsError):
    """The store does not answer, is too busy, is full, or denies access. The call may be valid and can be repeated.
    Whether an insert took place is unknown."""


class AnalyticsInUse(AnalyticsAway):
    """The folder of an embedded store belongs to another process, or this process has another folder open."""


class AnalyticsRefused(AnalyticsError):
    """The store rejects the statement, the schema or the data, so a repetition is useless. `code`: ClickHouse's error
    code; None: the client rejected it."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class AnalyticsSchemaMismatch(AnalyticsError):
    """A newer version of this program made the tables, or the files that made them have changed since."""
