"""The embedded engine computes below those who answer requests."""

import os
import sys
import threading
from contextlib import suppress

import pytest

from gateway.analytics.opening import open_analytics


def niceness() -> dict[int, int]:
    """Of the threads of this process. One that an earlier test left may end while it is read."""
    found = {}
    for task in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            found[int(task)] = os.getpriority(os.PRIO_PROCESS, int(task))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
async def test_its_threads_give_way_to_those_that_were_there() -> None:
    before = niceness()
    own = before[threading.get_native_id()]
    store = open_analytics("chdb://memory")
    try:
        await store.query("SELECT sum(number) FROM numbers(100000)")
        since = [nice for task, nice in niceness().items() if task not in before]
        computing = [nice for nice in since if nice >= own]  # its watch over memory it puts above all, where it may
        assert computing
        assert min(computing) > own
    finally:
        await store.aclose()
