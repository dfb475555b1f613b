"""How long work on the device takes: by its own clock, many times, the median."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch


def median_ms(works: Sequence[Callable[[], object]], device: torch.device, repeats: int) -> float:
    """Milliseconds of one of `works`, which take turns, so that none finds its inputs in a cache. Warms up first."""
    for work in works[:2]:
        work()
    if device.type != "cuda":
        return statistics.median(_host_ms(works[index % len(works)]) for index in range(repeats))
    pairs = []
    for index in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        works[index % len(works)]()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize(device)
    return statistics.median(start.elapsed_time(end) for start, end in pairs)


def replayed_ms(works: Sequence[Callable[[], object]], device: torch.device, repeats: int) -> float:
    """The same for works of few microseconds: all of them in one CUDA graph, so that no launch is waited for."""
    if device.type != "cuda":
        return median_ms(works, device, repeats)

    def all_works() -> None:
        for work in works:
            work()

    # Once outside the stream that captures: what is compiled or set up on first use must not be captured.
    aside = torch.cuda.Stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        all_works()
    torch.cuda.current_stream(device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_works()
    milliseconds = median_ms([graph.replay], device, repeats) / len(works)
    torch.cuda.synchronize(device)
    return milliseconds


def _host_ms(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3
