"""Waits for what other processes bring about, and reads what they answer."""

import asyncio
import time
from collections.abc import Callable

from engine.request import TextDelta
from engine.runtime.output_stream import OutputStream

MOST_SECONDS = 60.0


async def all_of(stream: OutputStream) -> list[TextDelta]:
    deltas: list[TextDelta] = []
    while batch := await stream.next_batch():
        deltas += batch
    return deltas


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(MOST_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + MOST_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.005)
