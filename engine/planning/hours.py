"""Which hours of a day are played, and how much of each."""

from collections.abc import Sequence
from typing import NamedTuple

from engine.planning.traffic import Window

MAX_PLAYED = 4
MIN_SECONDS, MAX_SECONDS = 5.0, 3000.0


class PlayedHour(NamedTuple):
    """An hour that is played, and the hours that it stands for, itself included."""

    hour: int
    stands_for: tuple[int, ...]


def played_hours(loads: Sequence[float], most: int = MAX_PLAYED) -> list[PlayedHour]:
    """The rule: the range from no load to the busiest hour's is cut into `most` equal parts. Of the hours in each part
    the busiest is played, and stands for the others of its part. Figures of an hour are therefore those of a load that
    is no less than its own. Hours without load are left out. The busiest is the first."""
    top = max(loads)
    if top <= 0:
        return []
    parts: dict[int, list[int]] = {}
    for hour, load in enumerate(loads):
        if load > 0:
            parts.setdefault(min(int(most * load / top), most - 1), []).append(hour)
    played = []
    for part in sorted(parts, reverse=True):
        hours = parts[part]
        played.append(PlayedHour(max(hours, key=lambda hour: loads[hour]), tuple(hours)))
    return played


def window_of(hour: int, rate: float, requests: int, answer_s: float) -> Window:
    """The window of an hour with `rate` requests per second in which about `requests` are measured. It is warmed for
    twice the expected duration of an answer, `answer_s`, and for at least a tenth of the window."""
    seconds = min(max(requests / rate, MIN_SECONDS), MAX_SECONDS)
    return Window(hour, min(max(2 * answer_s, seconds / 10), 60.0), seconds)
