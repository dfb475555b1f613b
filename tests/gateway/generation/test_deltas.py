"""Reading a call for a client: a disconnect ends it at once."""

import asyncio
from typing import Any

import pytest

from engine.request import SamplingParams
from engine.runtime.engine_call import EngineCall
from gateway.generation.deltas import reading
from gateway.http.errors import ClientGone
from tests.support.fake_engine import FakeEngine, PromptInput


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def call(engine: FakeEngine, pace_s: float = 0.0):
    engine.start()
    engine.pace_s = pace_s
    return engine.submit("tiny", EngineCall([PromptInput([1, 2], SamplingParams(max_tokens=5))]))


async def test_a_call_is_read_to_its_end() -> None:
    engine = FakeEngine()
    text = ""
    async with reading(call(engine), never) as deltas:
        while batch := await deltas.next_batch():
            text += "".join(delta.text for delta in batch)
    assert text == "Hello"
    assert not engine.live


async def test_a_disconnect_ends_the_call_at_once() -> None:
    engine, gone = FakeEngine(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async with reading(call(engine, pace_s=60), receive) as deltas:
        await asyncio.sleep(0.01)
        assert engine.live
        gone.set()
        await asyncio.sleep(0.01)
        assert not engine.live
        with pytest.raises(ClientGone):
            await deltas.next_batch()


async def test_nothing_is_left_after_the_block_however_it_ends() -> None:
    engine = FakeEngine()
    before = asyncio.all_tasks()
    with pytest.raises(ZeroDivisionError):
        async with reading(call(engine, pace_s=60), never):
            await asyncio.sleep(0.01)
            assert engine.live
            raise ZeroDivisionError
    assert not engine.live
    assert asyncio.all_tasks() == before
