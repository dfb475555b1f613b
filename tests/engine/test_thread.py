"""The engine's thread among the others of its process."""

import os
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from engine.runtime.thread import EngineThread


@pytest.fixture
def engine_thread() -> Iterator[EngineThread]:
    thread = EngineThread()
    yield thread
    thread.close()


def niceness(thread_id: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread_id)


def multiply() -> list[int]:
    """Enough for OpenMP to start workers; returns the niceness of each thread that there is."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.randn(1500, 1500) @ torch.randn(1500, 1500)
    torch.set_num_threads(before)
    return [niceness(int(task)) for task in os.listdir("/proc/self/task")]


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
class TestPriority:
    def test_it_gives_way_to_the_other_threads_of_its_process(self, engine_thread: EngineThread) -> None:
        own = niceness(threading.get_native_id())
        assert engine_thread.submit(lambda: niceness(threading.get_native_id())).result() > own
        assert niceness(threading.get_native_id()) == own

    def test_it_keeps_its_share_beside_other_programs(self, engine_thread: EngineThread) -> None:
        """A step of niceness is a fifth of the weight; at 10, it had a tenth of what another program has."""
        own = niceness(threading.get_native_id())
        assert engine_thread.submit(lambda: niceness(threading.get_native_id())).result() <= own + 1

    def test_one_that_launches_steps_on_a_gpu_has_the_priority_of_the_others(self) -> None:
        thread = EngineThread(computes=False)
        assert thread.submit(lambda: niceness(threading.get_native_id())).result() == niceness(0)
        thread.close()

    def test_so_do_the_workers_that_it_starts(self, engine_thread: EngineThread) -> None:
        own = niceness(threading.get_native_id())
        others = engine_thread.submit(multiply).result()
        assert len([each for each in others if each > own]) >= 2
