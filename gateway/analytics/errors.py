"""What can go wrong with the analytics store. Messages are one line and never hold a password."""

from gateway.errors import OperatorError


class AnalyticsError(OperatorError):
    """Base of this package's errors."""


class InvalidAnalyticsURL(AnalyticsError):
    """The URL names no store that there is."""


class AnalyticsAway(AnalyticsError):
    """The store does not answer, is too busy, is full or does not let us in: what was asked may be right, and may be
    asked again. Of an insert it is unknown whether it took place."""


class AnalyticsInUse(AnalyticsAway):
    """The folder of an embedded store belongs to another process, or this process has another folder open."""


class AnalyticsRefused(AnalyticsError):
    """The store has understood and says no: the statement, the schema or the data is wrong, and asking again is in
    vain. `code` is ClickHouse's, None where the client noticed it."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class AnalyticsSchemaMismatch(AnalyticsError):
    """The tables were made by a newer version of this program, or by files that have been changed since."""
