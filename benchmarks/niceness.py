"""Costs and benefits of the engine's niceness on Linux: `python -m benchmarks.niceness` (half a minute, one core).

For each niceness of a thread that computes: its share of a core on which a busy process of niceness 0 runs, and how
late a thread of niceness 0 in the same process wakes on that core. All of it is pinned to the first core. With
autogroups (`/proc/sys/kernel/sched_autogroup_enabled`), niceness counts among the processes of one session alone, and
both belong to the same here. A busy machine's other sessions are kept out by a weight for this one, which takes root:
`setsid -w sh -c 'echo -20 > /proc/self/autogroup; python -m benchmarks.niceness'`.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np

NICENESS = (0, 1, 2, 3, 5, 10)
PAUSE_S = 0.002


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What the engine's niceness costs and brings.")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    seconds: float = parser.parse_args(arguments).seconds
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(f"Linux {os.uname().release}, load {os.getloadavg()[0]:.1f}")
    print("niceness  share of a core  wakes late by, ms: p50    p99    max")
    for niceness in NICENESS:
        share = share_of_core(niceness, seconds)
        late = lateness_ms(niceness, seconds)
        p50, p99 = (late[int(part * len(late))] for part in (0.5, 0.99))
        print(f"{niceness:>8}  {share:>15.0%}  {p50:>24.2f} {p99:>6.2f} {late[-1]:>6.2f}", flush=True)


def share_of_core(niceness: int, seconds: float) -> float:
    """Processor time over elapsed time of a thread that computes on a core with a busy process."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    shares: list[float] = []

    def compute() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        begun, used = time.monotonic(), time.thread_time()
        while time.monotonic() - begun < seconds:
            pass
        shares.append((time.thread_time() - used) / (time.monotonic() - begun))

    try:
        time.sleep(0.3)
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
    finally:
        busy.kill()
        busy.wait()
    return shares[0]


def lateness_ms(niceness: int, seconds: float) -> list[float]:
    """How late this thread wakes from each of many short sleeps, on a core with a thread that computes without the
    interpreter, ascending."""
    stop = threading.Event()
    numbers = np.random.default_rng(0).random(300_000)

    def compute() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        while not stop.is_set():
            np.sort(numbers)

    thread = threading.Thread(target=compute)
    thread.start()
    late: list[float] = []
    end = time.monotonic() + seconds
    while (asleep := time.monotonic()) < end:
        time.sleep(PAUSE_S)
        late.append(1e3 * (time.monotonic() - asleep - PAUSE_S))
    stop.set()
    thread.join()
    return sorted(late)


if __name__ == "__main__":
    main()
