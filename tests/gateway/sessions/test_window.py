"""How many turns go, and how often."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sessions.window import LOW_WATER, ContextWindow, Size, turns_to_drop


def drop(sizes: list[int], window: ContextWindow, bytes_each: int = 0) -> tuple[int, int]:
    """Turns to drop of droppable ones with these tokens, in front of nothing; and how often their size was asked."""
    asked = 0

    async def size_without(turns: int) -> Size:
        nonlocal asked
        asked += 1
        return Size(sum(sizes[turns:]), bytes_each * len(sizes[turns:]))

    return asyncio.run(turns_to_drop(len(sizes), window, size_without)), asked


def tokens(limit: int, target: int) -> ContextWindow:
    return ContextWindow(Size(limit, 10**9), Size(target, 10**9))


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(0, 800), st.integers(0, 800))
def test_as_few_go_as_meet_the_target(sizes, limit, target):
    window = tokens(limit, min(target, limit))
    turns, _ = drop(sizes, window)
    remaining = [sum(sizes[n:]) for n in range(len(sizes) + 1)]
    assert remaining[turns] <= window.target.tokens
    assert turns == 0 or remaining[turns - 1] > window.target.tokens


def test_bytes_count_as_tokens_do():
    assert drop([1] * 10, ContextWindow(Size(100, 50), Size(100, 25)), bytes_each=10)[0] == 8


def test_what_cannot_meet_the_target_meets_the_limit_with_as_few():
    async def size_without(turns: int) -> Size:
        return Size(60 + 10 * (5 - turns), 0)

    for limit, turns in ((100, 1), (80, 3), (60, 5), (59, 5)):
        assert asyncio.run(turns_to_drop(5, tokens(limit, 50), size_without)) == turns


def test_a_long_history_is_tokenised_a_few_times():
    turns, asked = drop([1] * 1000, tokens(800, 400))
    assert turns == 600
    assert asked <= 12


@pytest.mark.parametrize(("context", "answer", "limit"), [
    (1000, None, 750),
    (8192, None, 8192 - 1024),
    (1000, 100, 900),
    (1000, 5000, 0),
])  # fmt: skip
def test_room_is_left_for_the_answer(context, answer, limit):
    window = ContextWindow.of(context, answer, 4096)
    assert window.limit == Size(limit, 4096)
    assert window.target == Size(int(limit * LOW_WATER), 2048)


def test_the_front_of_the_prompt_stays_for_many_turns():
    """100 turns of 20 tokens through a window for 40 of them: the front moves once in 21 turns, not each time."""
    window = tokens(800, 400)
    history: list[int] = []
    fronts = []
    for turn in range(100):
        history.append(turn)
        if 20 * len(history) > window.limit.tokens:
            history = history[drop([20] * len(history), window)[0] :]
        fronts.append(history[0])
    assert [len(list(same)) for _, same in itertools.groupby(fronts)] == [40, 21, 21, 18]
