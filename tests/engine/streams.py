"""Streams of an engine: read to the end, and what they leave."""

import asyncio
from collections.abc import AsyncIterator, Callable

from engine import Engine, TextDelta


async def collect(stream: AsyncIterator[TextDelta]) -> list[TextDelta]:
    return [delta async for delta in stream]


def text_of(deltas: list[TextDelta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


def tokens_of(deltas: list[TextDelta], index: int = 0) -> list[int]:
    return [token for delta in deltas if delta.index == index for token in delta.token_ids]


async def settle(engine: Engine, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


def idle(engine: Engine) -> bool:
    return all(s.running == s.waiting == 0 and s.free_blocks == s.num_blocks for s in engine.stats().values())
