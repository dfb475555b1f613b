"""This machine's limits, measured with torch in the run that quotes them: `python -m benchmarks.limits`."""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import torch

_READ_BYTES = 1 << 30
_MATMUL_SIZE = 2048


@dataclass(frozen=True, slots=True)
class Limits:
    """read_gb_s: gigabytes a second of a sum over 1 GiB. matmul_gflop_s: by rows, times [2048, 2048] in bf16."""

    threads: int
    read_gb_s: float
    matmul_gflop_s: dict[int, float]


def measure_limits() -> Limits:
    data = torch.ones(_READ_BYTES // 4)
    read = _READ_BYTES / _best_seconds(data.sum, 5) / 1e9
    del data
    matmul = {}
    weight = torch.ones((_MATMUL_SIZE, _MATMUL_SIZE), dtype=torch.bfloat16)
    for rows in (32, 256, 1024):
        x = torch.ones((rows, _MATMUL_SIZE), dtype=torch.bfloat16)
        seconds = _best_seconds(lambda x=x: x @ weight, 20)  # type: ignore[misc]
        matmul[rows] = 2 * rows * _MATMUL_SIZE**2 / seconds / 1e9
    return Limits(torch.get_num_threads(), read, matmul)


def measured_limits() -> Limits:
    """`measure_limits` in a process of its own, so that its threads are gone before anything else is measured."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure_limits).result()


def _best_seconds(work: Callable[[], object], rounds: int) -> float:
    work()
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def print_limits(limits: Limits) -> None:
    rates = ", ".join(f"{rate:.0f} ({rows} rows)" for rows, rate in limits.matmul_gflop_s.items())
    print(f"limits: {limits.threads} threads, read {limits.read_gb_s:.1f} GB/s, bf16 matmul {rates} GFLOP/s")


if __name__ == "__main__":
    print_limits(measure_limits())
