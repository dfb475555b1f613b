"""Windows of limits, as whole buckets of time (sliding window counters).

The amounts of a request count in the bucket of its admission, held or committed alike, while that bucket is in the
window:

    MINUTE  sliding: buckets of 5 s, each of which counts for 60 s after the last admission in it. The limit holds
            exactly over any 60 s: there is no double burst at an edge, as with fixed windows, nor after a pause, as
            with a token bucket. A refused request waits at most 60 s. The price: an amount returns 60 to 65 s after
            it was taken, not exactly 60.
    DAY     the calendar day, UTC, as it is printed on a contract.
    MONTH   the calendar month, UTC.
    EVER    all time: what is deducted from a balance.
    OPEN    no time: what open requests hold.

Buckets are numbered: DAY and MINUTE since 1970, MONTH as year x 12 + month - 1, EVER and OPEN always 0. The mark of a
bucket says when it leaves: for MINUTE the last admission in it (Unix milliseconds), otherwise its number. The prelude
of the Lua scripts has the same arithmetic; the contract tests hold the two together.
"""

from datetime import UTC, datetime
from enum import StrEnum

BUCKET_MS = 5_000
MINUTE_MS = 60_000
DAY_MS = 86_400_000


class LimitWindow(StrEnum):
    """Kind of a limit's window."""

    MINUTE = "minute"
    DAY = "day"
    MONTH = "month"
    EVER = "ever"
    OPEN = "open"


def bucket_at(window: LimitWindow, at_ms: int) -> int:
    """The bucket of a time in Unix milliseconds."""
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
    """Whether a bucket with this mark is still in the window."""
    return mark + MINUTE_MS > now_ms if window is LimitWindow.MINUTE else mark >= bucket_at(window, now_ms)


def leaves_at_ms(window: LimitWindow, mark: int) -> int | None:
    """Time in Unix milliseconds when a bucket with this mark leaves the window. None: it does not leave with time."""
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
