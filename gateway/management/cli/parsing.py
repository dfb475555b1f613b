"""Values of options, from their text to the JSON that operations take."""

from datetime import UTC, datetime

import typer


def parse_time(option: str, text: str) -> str:
    """RFC 3339 in UTC, from ISO 8601. A time without an offset is in UTC.

    Raises:
        typer.BadParameter: not a time.
    """
    try:
        moment = datetime.fromisoformat(text)
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{option} takes a time as in 2026-12-01 or 2026-12-01T10:00:00+01:00") from None
    return moment.isoformat().replace("+00:00", "Z")


def optional_time(option: str, text: str | None) -> str | None:
    """As `parse_time`; None stays None."""
    return None if text is None else parse_time(option, text)
