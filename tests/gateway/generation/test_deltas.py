"""Reading engine streams: order, bounds, and that none outlives its reader."""

import asyncio

import pytest

from engine.errors import EngineError
from engine.request import TextDelta
from gateway.generation import deltas as module
from gateway.generation.deltas import DeltaStream, reading
from gateway.http.errors import ClientGone

pytestmark = pytest.mark.anyio


class Source:
    """An engine stream of `count` deltas that are all ready at once."""

    def __init__(self, count: int, *, fails: bool = False, waits: bool = False) -> None:
        self.produced = 0
        self.closed = False
        self._count = count
        self._fails = fails
        self._waits = waits

    async def stream(self):
        try:
            while self.produced < self._count:
                self.produced += 1
                yield TextDelta(0, text=str(self.produced))
            if self._waits:
                await asyncio.sleep(60)
            if self._fails:
                raise EngineError("NaN")
        finally:
            self.closed = True


async def never() -> dict:
    await asyncio.sleep(60)
    return {}


async def everything(deltas: DeltaStream) -> list:
    seen = []
    while batch := await deltas.next_batch():
        seen += batch
    return seen


async def test_all_that_is_ready_comes_at_once():
    source = Source(5)
    async with reading([source.stream()], 1, never) as deltas:
        assert [delta.text for _, delta in await deltas.next_batch()] == ["1", "2", "3", "4", "5"]
        assert await deltas.next_batch() == []
        assert await deltas.next_batch() == []
    assert source.closed


async def test_choices_of_a_batch_are_numbered_after_their_prompt():
    sources = [Source(2), Source(3), Source(1)]
    async with reading([source.stream() for source in sources], 4, never) as deltas:
        seen = await everything(deltas)
    assert sorted({choice for choice, _ in seen}) == [0, 4, 8]
    assert [delta.text for choice, delta in seen if choice == 4] == ["1", "2", "3"]
    assert all(source.closed for source in sources)


async def test_a_reader_that_is_slow_bounds_what_is_held(monkeypatch):
    monkeypatch.setattr(module, "MAX_PENDING_TOKENS", 10)
    source = Source(1000)
    async with reading([source.stream()], 1, never) as deltas:
        for _ in range(20):
            await asyncio.sleep(0)
        assert source.produced == 10
        assert len(await everything(deltas)) == 1000


async def test_what_is_held_is_bounded_with_many_streams_and_small_writes(monkeypatch):
    monkeypatch.setattr(module, "MAX_PENDING_TOKENS", 10)
    monkeypatch.setattr(module, "MAX_WRITTEN_TOKENS", 3)
    sources = [Source(100) for _ in range(8)]
    async with reading([source.stream() for source in sources], 1, never) as deltas:
        read = 0
        while batch := await deltas.next_batch():
            assert len(batch) <= 3
            read += len(batch)
            for _ in range(20):
                await asyncio.sleep(0)
            assert sum(source.produced for source in sources) - read <= 10 + len(sources)
    assert read == 800


async def test_a_stream_that_ends_while_there_is_no_room_does_not_end_the_others(monkeypatch):
    monkeypatch.setattr(module, "MAX_PENDING_TOKENS", 3)
    short, more = Source(3), asyncio.Event()

    async def late():
        await more.wait()
        yield TextDelta(0, text="late")

    async with reading([short.stream(), late()], 1, never) as deltas:
        assert len(await deltas.next_batch()) == 3
        asyncio.get_running_loop().call_later(0.01, more.set)
        assert [delta.text for _, delta in await deltas.next_batch()] == ["late"]
        assert await deltas.next_batch() == []


async def test_a_failure_comes_after_what_was_ready_and_ends_the_others():
    waiting, failing = Source(1, waits=True), Source(2, fails=True)
    async with reading([waiting.stream(), failing.stream()], 1, never) as deltas:
        batch = await deltas.next_batch()
        assert len(batch) == 3
        with pytest.raises(EngineError):
            await deltas.next_batch()
        await asyncio.sleep(0)
        assert waiting.closed
    assert failing.closed


async def test_a_reader_that_fails_leaves_nothing_open():
    sources = [Source(1, waits=True), Source(1000)]
    with pytest.raises(ZeroDivisionError):
        async with reading([source.stream() for source in sources], 1, never) as deltas:
            await deltas.next_batch()
            raise ZeroDivisionError
    assert all(source.closed for source in sources)


async def test_cancelling_the_reader_leaves_nothing_open():
    source = Source(1, waits=True)

    async def read() -> None:
        async with reading([source.stream()], 1, never) as deltas:
            await everything(deltas)

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.closed


async def test_hanging_up_ends_the_streams_at_once():
    source = Source(3, waits=True)
    gone = asyncio.Event()

    async def receive() -> dict:
        await gone.wait()
        return {"type": "http.disconnect"}

    async with reading([source.stream()], 1, receive) as deltas:
        assert len(await deltas.next_batch()) == 3
        gone.set()
        await asyncio.sleep(0.001)
        assert source.closed
        with pytest.raises(ClientGone):
            await deltas.next_batch()


async def test_what_nobody_will_read_is_not_kept_after_hanging_up():
    source = Source(3, waits=True)
    async with reading([source.stream()], 1, never) as deltas:
        await asyncio.sleep(0.001)
        deltas.abandon()
        with pytest.raises(ClientGone):
            await deltas.next_batch()
    assert source.closed
