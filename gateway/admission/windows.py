"""Windows of limits, as whole buckets of time.

What a request takes counts in the bucket of the moment when it was admitted, held or committed alike, for as long
as that bucket is in the window:

    MINUTE  sliding: 5 s buckets, the current one and the 12 before it. Whatever 60 s one looks at, they lie within
            13 buckets that were checked together, so the limit holds exactly in every minute: no double burst at an
            edge, as with fixed minutes, nor after a pause, as with a refilled bucket. The price: an amount comes back
            60 to 65 s after it was taken, not at 60 sharp.
    DAY     the calendar's, UTC, as it is printed on a contract.
    MONTH   the calendar's, UTC.
    EVER    all time: what comes off a balance.
    OPEN    no time at all: what requests hold that are under way.

Buckets are numbered: DAY and MINUTE since 1970, MONTH as year x 12 + month - 1, EVER and OPEN always 0. The prelude of
the Lua scripts has the same arithmetic; the contract tests hold the two together.
"""

from datetime import UTC, datetime
from enum import StrEnum

BUCKET_MS = 5_000
MINUTE_BUCKETS = 12
DAY_MS = 86_400_000


class Window(StrEnum):
    MINUTE = "minute"
    DAY = "day"
    MONTH = "month"
    EVER = "ever"
    OPEN = "open"


def bucket_at(window: Window, at_ms: int) -> int:
    """The bucket that a moment (Unix milliseconds) is in."""
    match window:
        case Window.MINUTE:
            return at_ms // BUCKET_MS
        case Window.DAY:
            return at_ms // DAY_MS
        case Window.MONTH:
            at = datetime.fromtimestamp(at_ms // 1000, UTC)
            return at.year * 12 + at.month - 1
        case Window.EVER | Window.OPEN:
            return 0


def oldest_bucket(window: Window, now_ms: int) -> int:
    """The oldest bucket that still counts."""
    newest = bucket_at(window, now_ms)
    return newest - MINUTE_BUCKETS if window is Window.MINUTE else newest


def leaves_at_ms(window: Window, bucket: int) -> int | None:
    """When a bucket stops counting. None: never by itself."""
    match window:
        case Window.MINUTE:
            return (bucket + MINUTE_BUCKETS + 1) * BUCKET_MS
        case Window.DAY:
            return (bucket + 1) * DAY_MS
        case Window.MONTH:
            year, month = divmod(bucket + 1, 12)
            return int(datetime(year, month + 1, 1, tzinfo=UTC).timestamp()) * 1000
        case Window.EVER | Window.OPEN:
            return None
