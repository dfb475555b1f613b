"""What this processor is good at, found out in a fraction of a second at start."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.cpu.linear import PackedLinear, PlainLinear, can_pack

_OUT, _IN = 4096, 2048
_ROUNDS = 3
_SINGLE_ROW_GAIN = 1.1
"""A choice that departs from the plain one has to be this much faster."""


@dataclass(frozen=True, slots=True)
class CpuProfile:
    """How to compute on this machine. The microseconds are of one [rows, 2048] x [2048, 4096] product."""

    dtype: torch.dtype
    threads: int
    packed: bool
    pad_single_row: bool
    probe_us: dict[str, float]


def probe(dtype: torch.dtype | None = None, threads: int | None = None) -> CpuProfile:
    """Choose dtype, packing, padding and threads; arguments that are given are kept.

    Sets torch's thread count. bf16 wins where it is faster at eight rows than float32: below that memory decides and
    bf16 has half of it to read, so a processor without bf16 arithmetic shows there.
    """
    threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    timings: dict[str, float] = {}
    if dtype is None:
        dtype = torch.float32
        if can_pack(torch.bfloat16):
            for candidate in (torch.bfloat16, torch.float32):
                timings[f"{_name(candidate)} packed x8"] = _time_product(candidate, rows=8, packed=True)
            if timings["bfloat16 packed x8"] <= timings["float32 packed x8"]:
                dtype = torch.bfloat16
    packed = pad = False
    if can_pack(dtype):
        timings[f"{_name(dtype)} plain x1"] = plain = _time_product(dtype, rows=1, packed=False)
        timings[f"{_name(dtype)} packed x1"] = single = _time_product(dtype, rows=1, packed=True)
        timings[f"{_name(dtype)} packed x2"] = double = _time_product(dtype, rows=2, packed=True)
        packed = min(single, double) <= plain
        pad = packed and single > double * _SINGLE_ROW_GAIN
    return CpuProfile(dtype, threads, packed, pad, {name: round(us, 1) for name, us in timings.items()})


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _time_product(dtype: torch.dtype, rows: int, packed: bool) -> float:
    """Microseconds of the fastest of a few products."""
    weight = torch.full((_OUT, _IN), 0.01, dtype=dtype)
    x = torch.full((rows, _IN), 0.01, dtype=dtype)
    product: Callable[[torch.Tensor], torch.Tensor]
    product = PackedLinear(weight, None) if packed else PlainLinear(weight, None)
    product(x)
    best = float("inf")
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        product(x)
        best = min(best, time.perf_counter() - started)
    return best * 1e6
