"""Labels of a time axis stand at round times."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.management.console.time_axis import MAX_LABELS, time_labels
from gateway.management.operations.timestamps import instant


def texts(start: str, bucket: timedelta, count: int) -> list[str]:
    first = datetime.fromisoformat(start).replace(tzinfo=UTC)
    return [text for _, text in time_labels([instant(first + bucket * number) for number in range(count)])]


@pytest.mark.parametrize(
    ("start", "bucket", "count", "labels"),
    [
        ("2026-03-01T20:46", timedelta(minutes=1), 61, ["20:50", "21:00", "21:10", "21:20", "21:30", "21:40"]),
        ("2026-03-01T20:46", timedelta(minutes=1), 20, ["20:50", "20:55", "21:00", "21:05"]),
        ("2026-03-01T05:00", timedelta(hours=1), 25, ["06:00", "12:00", "18:00", "Mar 2"]),
        ("2026-03-01T05:00", timedelta(hours=1), 7 * 24, [f"Mar {day}" for day in range(2, 9)]),
        ("2026-03-03T00:00", timedelta(days=1), 30, ["Mar 9", "Mar 16", "Mar 23", "Mar 30"]),
        (
            "2025-11-20T00:00",
            timedelta(days=1),
            366,
            ["Jan 2026", "Mar 2026", "May 2026", "Jul 2026", "Sep 2026", "Nov 2026"],
        ),
        ("2026-03-01T20:46", timedelta(minutes=1), 0, []),
    ],
)
def test_labels_are_at_round_times(start: str, bucket: timedelta, count: int, labels: list[str]) -> None:
    assert texts(start, bucket, count) == labels
    assert len(labels) <= MAX_LABELS


def test_a_label_names_its_place() -> None:
    starts = [f"2026-03-01T{hour:02}:00:00.000000Z" for hour in range(24)]
    assert [place for place, _ in time_labels(starts)] == [0, 6, 12, 18]
