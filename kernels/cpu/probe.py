"""What this processor is good at, found out in a fraction of a second at start."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernels.cpu import native
from kernels.cpu.linear import PackedLinear, PlainLinear, can_pack

_OUT, _IN = 4096, 2048
_WEIGHTS = 3
"""Distinct weights in turn (16 MiB each in bf16), so that the cache does not stand in for memory."""
_ROUNDS = 2
_MIN_ROWS = (1, 2, 4)
_MANY_ROWS = 256
_FAR_AHEAD = 1.5
"""What oneDNN has to be ahead by at many rows to be taken for few as well: with the tiles of AMX it is by far more."""
_WORTHWHILE = 0.93
"""A choice that departs from the plainer one has to take at most this share of its time."""


Products = Literal["native", "onednn", "plain"]
"""Who computes a product with a weight: our library, oneDNN from its own layout, or torch from rows as they are."""


@dataclass(frozen=True, slots=True)
class CpuProfile:
    """How to compute on this machine. `min_rows` are oneDNN's. `probe_us` are times of one [rows, 2048] x [2048, 4096]
    product."""

    dtype: torch.dtype
    threads: int
    products: Products
    min_rows: int
    probe_us: dict[str, float]


def probe(dtype: torch.dtype | None = None, threads: int | None = None) -> CpuProfile:
    """Choose dtype, who computes products, padding and threads; arguments that are given are kept.

    Sets torch's thread count and the native library's. bf16 is chosen where it is the faster at eight rows: at one row
    memory decides, of which bf16 reads half, so it takes more rows to tell a processor that computes in bf16 from one
    that converts.
    """
    threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    native.start(threads)
    probe_us: dict[str, float] = {}
    if dtype is None:
        dtype = _faster_dtype(probe_us)
    weights = [torch.full((_OUT, _IN), 0.01, dtype=dtype) for _ in range(_WEIGHTS)]
    products, min_rows = _chosen(weights, probe_us)
    return CpuProfile(dtype, threads, products, min_rows, {name: round(us, 1) for name, us in probe_us.items()})


def _chosen(weights: Sequence[Tensor], probe_us: dict[str, float]) -> tuple[Products, int]:
    """Who computes, and oneDNN's padding. A processor with tiles (AMX) may have oneDNN so far ahead at many rows that
    prompts decide against our library, which is made for few."""
    few, many, min_rows = _time([PlainLinear(weight, None) for weight in weights], 1), float("inf"), 1
    products: Products = "plain"
    probe_us["plain x1"] = few
    if can_pack(weights[0].dtype):
        ready = [PackedLinear(weight, None) for weight in weights]
        by_rows = {rows: _time(ready, rows) for rows in _MIN_ROWS}
        probe_us |= {f"onednn x{rows}": us for rows, us in by_rows.items()}
        for rows in _MIN_ROWS:
            if by_rows[rows] < by_rows[min_rows] * _WORTHWHILE:
                min_rows = rows
        if by_rows[min_rows] <= few:
            products, few = "onednn", by_rows[min_rows]
            many = probe_us[f"onednn x{_MANY_ROWS}"] = _time(ready[:1], _MANY_ROWS)
    if native.can_pack(weights[0]):
        ours = [native.NativeLinear(weight, None) for weight in weights]
        probe_us["native x1"] = _time(ours, 1)
        probe_us[f"native x{_MANY_ROWS}"] = _time(ours[:1], _MANY_ROWS)
        if probe_us["native x1"] <= few and probe_us[f"native x{_MANY_ROWS}"] <= _FAR_AHEAD * many:
            products = "native"
    return products, min_rows


def _faster_dtype(probe_us: dict[str, float]) -> torch.dtype:
    if native.level() is native.Level.AVX512_BF16:  # it multiplies bf16, whatever a busy machine's clock says
        return torch.bfloat16
    if not can_pack(torch.bfloat16):
        return torch.float32
    for dtype in (torch.bfloat16, torch.float32):
        product = PackedLinear(torch.full((_OUT, _IN), 0.01, dtype=dtype), None)
        probe_us[f"{str(dtype).removeprefix('torch.')} x8"] = _time([product], 8)
    return torch.bfloat16 if probe_us["bfloat16 x8"] <= probe_us["float32 x8"] else torch.float32


def _time(products: Sequence[PackedLinear | PlainLinear | native.NativeLinear], rows: int) -> float:
    """Microseconds of one product in the fastest round over all of them."""
    x = torch.full((rows, _IN), 0.01, dtype=products[0].dtype)
    best = float("inf")
    for _ in range(1 + _ROUNDS):  # the first round pays for first times
        started = time.perf_counter()
        for product in products:
            product(x)
        best = min(best, time.perf_counter() - started)
    return best / len(products) * 1e6
