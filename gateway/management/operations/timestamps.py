"""Timestamps in answers and in the audit log."""

from datetime import UTC, datetime
from typing import overload


@overload
def instant(moment: datetime) -> str: ...
@overload
def instant(moment: None) -> None: ...
def instant(moment: datetime | None) -> str | None:
    """RFC 3339 in UTC, to the microsecond, with a Z."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
