"""Deltas on their way from the engine thread to an event loop."""

import asyncio
import threading
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.request import FinishReason, TokenDelta, TokenLogprob, Usage
from engine.runtime.streams import MAX_JOINED_TOKENS, OutputDispatcher, joined_steps


class Receiver:
    def __init__(self) -> None:
        self.deltas: list[TokenDelta] = []

    def push(self, delta: TokenDelta) -> None:
        self.deltas.append(delta)


async def test_steps_that_come_while_the_loop_is_busy_are_joined() -> None:
    dispatcher, receiver = OutputDispatcher(asyncio.get_running_loop()), Receiver()
    dispatcher.register("a", receiver)
    for token in range(3):
        dispatcher.post([TokenDelta("a", (token,), cached_tokens=7), TokenDelta("gone", (token,))])
    last = TokenDelta("a", (3,), finish_reason=FinishReason.STOP, usage=Usage(1, 4), cached_tokens=7)
    dispatcher.post([last])
    await asyncio.sleep(0)
    assert receiver.deltas == [last._replace(token_ids=(0, 1, 2, 3))]
    dispatcher.post([TokenDelta("a", (9,))])
    await asyncio.sleep(0)
    assert receiver.deltas[1:] == [TokenDelta("a", (9,))]


async def test_what_follows_a_step_follows_its_deltas() -> None:
    dispatcher, receiver = OutputDispatcher(asyncio.get_running_loop()), Receiver()
    dispatcher.register("a", receiver)
    seen: list[int] = []
    dispatcher.post([TokenDelta("a", (1,))])
    dispatcher.post([TokenDelta("a", (2,))])
    dispatcher.call(lambda: seen.append(sum(len(delta.token_ids) for delta in receiver.deltas)))
    await asyncio.sleep(0)
    assert seen == [2]


async def test_no_delta_of_any_thread_is_lost() -> None:
    dispatcher, receiver = OutputDispatcher(asyncio.get_running_loop()), Receiver()
    names = [f"r{thread}" for thread in range(4)]
    for name in names:
        dispatcher.register(name, receiver)

    def post(name: str) -> None:
        for token in range(500):
            dispatcher.post([TokenDelta(name, (token,))])

    threads = [threading.Thread(target=post, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    for name in names:
        own = [token for delta in receiver.deltas if delta.request_id == name for token in delta.token_ids]
        assert own == list(range(500))


STEPS = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 99), min_size=1, max_size=20)), max_size=12
)


@given(STEPS)
def test_joining_keeps_the_tokens_of_each_request_in_order(steps: list[dict[str, list[int]]]) -> None:
    deltas = [
        [
            TokenDelta(name, tuple(ids), tuple(TokenLogprob(each, -1.0, ()) for each in ids))
            for name, ids in step.items()
        ]
        for step in steps
    ]
    joined = joined_steps(deltas)
    for name in "abc":
        assert _tokens(name, joined) == _tokens(name, [delta for step in deltas for delta in step])
    assert all(len(delta.token_ids) <= MAX_JOINED_TOKENS for delta in joined)
    assert all(len(delta.token_ids) == len(delta.logprobs) for delta in joined)


def _tokens(name: str, deltas: Sequence[TokenDelta]) -> list[int]:
    return [token for delta in deltas if delta.request_id == name for token in delta.token_ids]
