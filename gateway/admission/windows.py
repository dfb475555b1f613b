"""Windows of limits, as whole buckets of time.

What a request takes counts in the bucket of the moment when it was admitted, held or committed alike, for as long
as that bucket is in the window:

    MINUTE  sliding: buckets of 5 s, each of which counts for 60 s after the last admission in it. Whatever 60 s one
            looks at, the limit holds exactly: no double burst at an edge, as with fixed minutes, nor after a pause, as
            with a refilled bucket. A refused request waits at most 60 s. The price: an amount comes back 60 to 65 s
            after it was taken, not at 60 sharp.
    DAY     the calendar's, UTC, as it is printed on a contract.
    MONTH   the calendar's, UTC.
    EVER    all time: what comes off a balance.
    OPEN    no time at all: what requests hold that are under way.

Buckets are numbered: DAY and MINUTE since 1970, MONTH as year x 12 + month - 1, EVER and OPEN always 0. The mark of a
bucket says when it leaves: of MINUTE the last admission in it (Unix milliseconds), else its number. The prelude of the
Lua scripts has the same arithmetic; the contract tests hold the two together.
"""

from datetime import UTC, datetime
from enum import StrEnum

BUCKET_MS = 5_000
MINUTE_MS = 60_000
DAY_MS = 86_400_000


class LimitWindow(StrEnum):
    MINUTE = "minute"
    DAY = "day"
    MONTH = "month"
    EVER = "ever"
    OPEN = "open"


def bucket_at(window: LimitWindow, at_ms: int) -> int:
    """The bucket that a moment (Unix milliseconds) is in."""
    match window:
        case LimitWindow.MINUTE:
            return at_ms // BUCKET_MS
        case LimitWindow.DAY:
            return at_ms // DAY_MS
        case LimitWindow.MONTH:
            at = datetime.fromtimestamp(at_ms // 1000, UTC)
            return at.year * 12 + at.month - 1
        case LimitWindow.EVER | LimitWindow.OPEN:
            return 0


def still_counts(window: LimitWindow, mark: int, now_ms: int) -> bool:
    """Whether a bucket with this mark has not left the window."""
    return mark + MINUTE_MS > now_ms if window is LimitWindow.MINUTE else mark >= bucket_at(window, now_ms)


def leaves_at_ms(window: LimitWindow, mark: int) -> int | None:
    """When a bucket with this mark stops counting. None: never by itself."""
    match window:
        case LimitWindow.MINUTE:
            return mark + MINUTE_MS
        case LimitWindow.DAY:
            return (mark + 1) * DAY_MS
        case LimitWindow.MONTH:
            year, month = divmod(mark + 1, 12)
            return int(datetime(year, month + 1, 1, tzinfo=UTC).timestamp()) * 1000
        case LimitWindow.EVER | LimitWindow.OPEN:
            return None
