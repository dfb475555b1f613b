"""Unix milliseconds and UTC instants."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc_from_ms(unix_ms: int) -> datetime:
    """A UTC datetime with millisecond precision, which all stores keep."""
    return datetime.fromtimestamp(unix_ms // 1000, UTC) + timedelta(milliseconds=unix_ms % 1000)


def unix_ms(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(milliseconds=1)
