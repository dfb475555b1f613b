"""Server-sent events, however their bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.events import MAX_EVENT_BYTES, EventReader, EventTooLong

LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data: ", b"data", b": comment", b"event: x", b"id: 7", "data: é€".encode()]
)


def read(chunks) -> list[bytes]:
    reader = EventReader()
    return [event for chunk in chunks for event in reader.feed(chunk)]


def cut(text: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


@given(
    st.lists(st.lists(LINES, max_size=4), max_size=5),
    st.sampled_from([b"\n", b"\r", b"\r\n"]),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_the_events_do_not_depend_on_the_cuts(events, end, places):
    text = b"".join(line + end for event in events for line in [*event, b""])
    expected = []
    for event in events:
        data = [line.partition(b":")[2].removeprefix(b" ") for line in event if line.partition(b":")[0] == b"data"]
        if data:
            expected.append(b"\n".join(data))
    assert read([text]) == expected
    assert read(cut(text, places)) == expected
    assert read([bytes([byte]) for byte in text]) == expected


def test_an_event_without_its_end_is_none():
    assert read([b"data: a\n"]) == []


@pytest.mark.parametrize("line", [b"data: " + b"x" * 1_000_000 + b"\n", b"x" * 1_000_000])
def test_an_event_without_end_is_refused(line):
    reader = EventReader()
    with pytest.raises(EventTooLong):
        for _ in range(MAX_EVENT_BYTES // 1_000_000 + 2):
            reader.feed(line)
