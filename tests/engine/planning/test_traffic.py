"""Described and recorded traffic, and the hours that are played."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.planning.hours import played_hours, window_of
from engine.planning.trace import TraceRow, TraceTraffic
from engine.planning.traffic import DescribedTraffic, Lengths, Stream, Window, prompt_tokens
from engine.request import PREMIUM, STANDARD
from engine.simulation.fleet_traffic import Session
from tests.support.planning import traffic

CLASSES = {"premium": PREMIUM, "standard": STANDARD}


def arrivals(sessions: list[Session]) -> list[int]:
    return [session.at_ns for session in sessions]


def test_equal_seeds_draw_equal_arrivals_in_order() -> None:
    window = Window(0, 5.0, 50.0)
    drawn = traffic().draw(window, CLASSES, 7)
    assert drawn == traffic().draw(window, CLASSES, 7)
    assert drawn != traffic().draw(window, CLASSES, 8)
    assert arrivals(drawn) == sorted(arrivals(drawn))
    assert all(0 <= at_ns < 55e9 for at_ns in arrivals(drawn))
    assert 4 * 55 * 0.7 < len(drawn) < 4 * 55 * 1.3


def test_requests_of_a_stream_share_its_prefix_and_no_more() -> None:
    drawn = traffic(20, 0).draw(Window(0, 0.0, 2.0), CLASSES, 1)
    prompts = [(*each.system, *each.turns[0].tokens) for each in drawn]
    first, second = prompts[:2]
    assert first[:96] == second[:96]
    assert first[96:112] != second[96:112]


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=3), st.integers(0, 500))
def test_prompt_tokens(key: list[int], count: int) -> None:
    tokens = prompt_tokens(key, count)
    assert len(tokens) == count
    assert all(1 <= token <= 256 for token in tokens)
    other = prompt_tokens([key[0] + 1, *key[1:]], count)
    assert count < 4 or tokens[:16] != other[:16]


def test_sessions_are_in_all_their_turns_when_a_window_begins() -> None:
    stream = Stream(
        tenant="a",
        service_class="premium",
        rates=(5.0,),
        prompt=Lengths(20),
        answer=Lengths(10),
        prefix_tokens=32,
        turns=6,
        think_s=20,
    )
    sessions = DescribedTraffic((stream,)).draw(Window(0, 0.0, 60.0), CLASSES, 3)
    requests = sum(len(session.turns) for session in sessions)
    assert 5 * 60 * 0.7 < requests < 5 * 60 * 1.3, "as many as the rate says, from the first minute on"
    first_second = [session for session in sessions if session.at_ns < 10e9]
    assert any(len(session.system) > 32 for session in first_second), "none has had a turn before"


def test_scaled_traffic() -> None:
    doubled = traffic(1, 3).scaled({"premium": 2.0, "b": 0.5, "all": 10.0})
    assert doubled.rates == [20 + 15]
    assert traffic(1, 3, hours=2).rates == [4.0, 4.0]


ROWS = tuple(
    TraceRow(float(second), "a", "premium", 100, 10, "g", 64, session="s" if second % 50 == 0 else "")
    for second in range(0, 7200, 2)
)


def test_a_trace_has_its_hours() -> None:
    trace = TraceTraffic(ROWS)
    assert len(trace.rates) == 2
    assert trace.rates[0] == pytest.approx(0.5)
    assert trace.loads[0] == pytest.approx(55.0)
    drawn = trace.draw(Window(1, 10.0, 100.0), CLASSES, 0)
    assert len(drawn) == 55
    assert all(len(each.system) == 64 and len(each.turns[0].tokens) == 36 for each in drawn)


def test_the_busiest_part_of_an_hour_is_played() -> None:
    burst = [TraceRow(1800 + each / 100, "a", "premium", 50, 5) for each in range(500)]
    rows = tuple(sorted((*ROWS, *burst), key=lambda row: row.at_s))
    drawn = TraceTraffic(rows).draw(Window(0, 10.0, 60.0), CLASSES, 0)
    assert len(drawn) >= 500


def test_a_scaled_trace_repeats_and_leaves_out() -> None:
    trace = TraceTraffic(ROWS)
    assert len(trace.scaled({"premium": 2.0}).rows) == 2 * len(ROWS)
    assert 0.4 < len(trace.scaled({"all": 0.5}).rows) / len(ROWS) < 0.6
    assert trace.scaled({"standard": 3.0}).rows == ROWS
    assert trace.scaled({"a": 1.5}) == trace.scaled({"a": 1.5})


def test_turns_of_a_recorded_session_begin_alike() -> None:
    rows = (TraceRow(0.0, "a", "premium", 40, 10, session="s"), TraceRow(5.0, "a", "premium", 80, 10, session="s"))
    first, second = (each.turns[0].tokens for each in TraceTraffic(rows).draw(Window(0, 0.0, 9.0), CLASSES, 0))
    assert second[:40] == first


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=48), st.integers(1, 8))
def test_each_hour_with_load_is_played_by_one_that_is_no_less_busy(loads: list[float], most: int) -> None:
    played = played_hours(loads, most)
    assert len(played) <= most
    assert sorted(hour for each in played for hour in each.stands_for) == [
        hour for hour, load in enumerate(loads) if load > 0
    ]
    for each in played:
        assert all(loads[hour] <= loads[each.hour] for hour in each.stands_for)
    if played:
        assert loads[played[0].hour] == max(loads)


def test_windows_have_the_requests_that_are_asked_for() -> None:
    assert window_of(3, 10.0, 600, 1.0) == Window(3, 6.0, 60.0)
    assert window_of(3, 1000.0, 600, 4.0).seconds == 5.0
