"""The library's own threads: right under several callers and other numbers of threads, there after a fork, at rest
when there is nothing to do."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.cpu import native
from kernels.cpu.native.library import load
from tests.kernels.cpu.faces import LinearFace, dense
from tests.kernels.cpu.processes import exit_code_of_fork

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    native.start(2)
    yield
    native.start(1)


class Products:
    """Products whose loops have pieces for many threads, together with their expected results."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        weight = torch.randint(-4, 5, (1500, 256), generator=generator).bfloat16()
        self._x = torch.randint(-4, 5, (5, 256), generator=generator).bfloat16()
        self._linear = LinearFace.packed([dense(weight)])
        self._expected = self._x.float() @ weight.float().T  # whole numbers: exact in any order

    def wrong(self, times: int) -> int:
        return sum(not torch.equal(self._linear.wide(self._x), self._expected) for _ in range(times))


def workers() -> list[int]:
    """Threads of this process that have no part in Python: kernel ids."""
    known = {thread.native_id for thread in threading.enumerate()}
    return [int(task) for task in os.listdir("/proc/self/task") if int(task) not in known]


def number_becomes(count: int) -> bool:
    """Whether the number of workers becomes `count`. The system lists one that has ended for a moment longer."""
    until = time.monotonic() + 5
    while len(workers()) != count and time.monotonic() < until:
        time.sleep(0.001)
    return len(workers()) == count


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_any_number_of_threads(threads: int) -> None:
    native.start(threads)
    assert Products().wrong(200) == 0


def test_several_callers_at_once() -> None:
    found: list[int] = []
    callers = [threading.Thread(target=lambda: found.append(Products().wrong(200))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [0, 0, 0, 0]


def test_the_number_changes_while_others_compute() -> None:
    found: list[int] = []
    caller = threading.Thread(target=lambda: found.append(Products().wrong(400)))
    caller.start()
    for threads in (1, 4, 2, 3, 1, 2):
        native.start(threads)
        time.sleep(0.002)
    caller.join()
    assert found == [0]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
class TestProcess:
    def test_threads_are_made_when_there_is_work_and_end_with_fewer(self) -> None:
        native.start(1)
        time.sleep(0.05)  # those of the tests before
        before = len(workers())
        native.start(4)
        assert Products().wrong(1) == 0
        assert number_becomes(before + 3)
        native.start(1)
        assert number_becomes(before)

    def test_a_child_starts_threads_of_its_own(self) -> None:
        products = Products()
        assert products.wrong(1) == 0
        assert exit_code_of_fork(lambda: products.wrong(50)) == 0
        assert products.wrong(50) == 0

    def test_idle_threads_take_no_time(self) -> None:
        assert Products().wrong(20) == 0
        time.sleep(0.05)
        started = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - started < 0.1, "a worker still looks for work"

    def test_work_wakes_them(self) -> None:
        products = Products()
        for _ in range(20):
            time.sleep(0.002)
            assert products.wrong(1) == 0

    def test_they_give_way_as_their_caller_does(self) -> None:
        """In a process of its own: what the threads have once given way to, they do not forget."""
        command = [sys.executable, "-c", "from tests.kernels.cpu.test_team import main; main()"]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert said.split() == ["5"]


def main() -> None:
    """Print by how much each worker stands back where its caller does so by 5."""

    def compute() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + 5)
        products.wrong(2000)
        priorities.extend(os.getpriority(os.PRIO_PROCESS, worker) - own for worker in set(workers()) - others)

    own, priorities = os.getpriority(os.PRIO_PROCESS, 0), list[int]()
    native.start(1)
    products, others = Products(), set(workers())
    native.start(2)
    caller = threading.Thread(target=compute)
    caller.start()
    caller.join()
    print(*priorities)
