"""Time axes: the names of buckets, and labels at round times."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from gateway.analytics.sums import Grain
from gateway.management.console.charts import Labels

MAX_LABELS = 7

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_STEPS_S = (
    *(_MINUTE * each for each in (1, 5, 10, 15, 30)),
    *(_HOUR * each for each in (1, 2, 3, 6, 12)),
    *(_DAY * each for each in (1, 2, 7, 14)),
)


def place_name(start: str, grain: Grain) -> str:
    """A bucket's name in a table. `start`: RFC 3339 in UTC."""
    match grain:
        case Grain.MINUTE:
            return start[11:16]
        case Grain.HOUR:
            return f"{start[5:10]} {start[11:16]}"
        case Grain.DAY:
            return start[:10]


def time_labels(starts: Sequence[str]) -> Labels:
    """At most `MAX_LABELS` labels of buckets that start at multiples of a round time: 5 minutes, 3 hours, a day, a
    month. Midnight is labelled with its day."""
    moments = [datetime.fromisoformat(start) for start in starts]
    if not moments:
        return ()
    length_s = (moments[-1] - moments[0]).total_seconds()
    for step_s in _STEPS_S:
        if length_s // step_s < MAX_LABELS:
            return [(place, _name(each)) for place, each in enumerate(moments) if _is_multiple(each, step_s)]
    firsts = [(place, each) for place, each in enumerate(moments) if each.day == 1 and not _since_midnight_s(each)]
    every = max(1, -(-len(firsts) // MAX_LABELS))
    return [(place, f"{each:%b %Y}") for place, each in firsts if (each.month - 1) % every == 0]


def _is_multiple(moment: datetime, step_s: int) -> bool:
    if step_s <= _DAY:
        return _since_midnight_s(moment) % step_s == 0
    days = (moment - datetime.fromtimestamp(0, moment.tzinfo)) // timedelta(days=1)
    # Weeks begin on Mondays: the epoch was a Thursday.
    return not _since_midnight_s(moment) and (days + 3) % (step_s // _DAY) == 0


def _since_midnight_s(moment: datetime) -> int:
    return moment.hour * _HOUR + moment.minute * _MINUTE + moment.second


def _name(moment: datetime) -> str:
    return f"{moment:%H:%M}" if _since_midnight_s(moment) else f"{moment:%b} {moment.day}"
