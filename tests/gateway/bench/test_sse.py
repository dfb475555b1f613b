from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.bench import sse
from gateway.tools.bench.sse import EventDecoder, EventTooLarge


def decoded(stream: bytes, cuts: list[int]) -> list[bytes]:
    decoder, events = EventDecoder(), []
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, end in pairwise(edges):
        events += decoder.feed(stream[start:end])
    return events


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\rdata: c", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": ping\n\ndata: a\n: ping\n\n", [b"a"]),
        (b"event: x\nid: 7\nretry: 5\ndata: a\n\n", [b"a"]),
        (b"event: only a name\n\n", []),
        (b"data\n\n", [b""]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"\n\n\xef\xbb\xbfdata: a\n\n", []),
        (b"database: no\n\n", []),
        (b"data: without an end\n", []),
        (b"", []),
    ],
)
def test_what_is_an_event(stream: bytes, events: list[bytes]) -> None:
    assert decoded(stream, []) == events
    assert decoded(stream, list(range(len(stream)))) == events


LINES = st.sampled_from(
    [b"data: x", b"data:", b"data: \xc3\xa9", b": c", b"event: e", b"", b"data", b"\xef\xbb\xbfdata: y"]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=12), st.lists(st.integers(0, 120), max_size=8))
def test_where_the_network_cuts_does_not_matter(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    # The last end of line is one that needs nothing after it.
    stream = b"".join(line + end for line, end in lines) + b"\n"
    assert decoded(stream, cuts) == decoded(stream, [])


@given(st.lists(st.text("ab\u00e9 {}", max_size=8), max_size=8), ENDS)
def test_what_was_written_is_read(values: list[str], end: bytes) -> None:
    stream = b"".join(b"data: " + value.encode() + end + end for value in values) + b":" + end
    assert decoded(stream, []) == [value.encode() for value in values]


def test_a_line_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    decoder = EventDecoder()
    with pytest.raises(EventTooLarge):
        for _ in range(20):
            decoder.feed(b"data: " + b"x" * 94)
    decoder = EventDecoder()
    with pytest.raises(EventTooLarge):
        for _ in range(20):
            decoder.feed(b"data: " + b"x" * 93 + b"\n")
