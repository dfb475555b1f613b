"""Waiting for another thread."""

import asyncio
import gc
from concurrent.futures import Future
from typing import Any

import pytest

from engine.runtime.futures import outcome_of


async def test_results_and_exceptions_arrive() -> None:
    good: Future[int] = Future()
    bad: Future[int] = Future()
    good.set_result(1)
    bad.set_exception(ValueError("no"))
    assert await outcome_of(good) == 1
    with pytest.raises(ValueError, match="no"):
        await outcome_of(bad)


async def test_who_gives_up_leaves_the_work_alone_and_no_complaint_behind() -> None:
    complaints: list[Any] = []
    loop = asyncio.get_running_loop()
    former = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    try:
        future: Future[int] = Future()
        waiter = asyncio.create_task(outcome_of(future))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter])
        assert not future.cancelled()
        future.set_exception(ValueError("nobody waits any more"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del future, waiter
        gc.collect()
        assert complaints == []
    finally:
        loop.set_exception_handler(former)
