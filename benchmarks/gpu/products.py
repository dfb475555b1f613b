"""How near products with plain and quantised weights are to the device's limits: few rows in bytes of weights a second,
many rows in operations a second, and both over plain weights by cuBLAS."""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil

import torch
from torch import Tensor

from benchmarks.gpu import names
from benchmarks.gpu.product_kinds import KINDS
from benchmarks.gpu.stage import Stage
from benchmarks.gpu.timing import median_ms, replayed_ms
from kernels.ops import Linear
from kernels.reference_ops import ReferenceLinear
from kernels.triton.few_rows import PlainLinear
from kernels.triton.tuning_products import FEW_ROWS

_MOST_SETS = 32
_REPLAYED_ROWS = 64
"""Rows up to which a product is short, and is timed in a graph."""


def run(stage: Stage) -> None:
    out_features, in_features = stage.scale.product
    dtype = stage.scale.dtypes[0]
    weight = torch.randn((out_features, in_features), generator=stage.generator, device=stage.device).to(dtype)
    packs: list[tuple[str, int, Callable[[Tensor], Linear]]] = [
        (names.PLAIN, 8 * weight.element_size(), lambda rows: ReferenceLinear(rows.clone(), None))
    ]
    packs += [(kind.name, kind.bits, kind.linear) for kind in KINDS if stage.scale.fp8_stores or not kind.rounds]
    for name, bits, pack in packs:
        stage.attempt(name, partial(_measure, stage, name, bits, pack, weight, stage.scale.product_rows))
    few = tuple(rows for rows in stage.scale.product_rows if rows <= FEW_ROWS.row_tile)
    name, bits, pack = names.FEW_ROWS, 8 * weight.element_size(), _FewRows
    stage.attempt(name, partial(_measure, stage, name, bits, pack, weight, few))


class _FewRows(PlainLinear):
    """One that takes its kernel, however small the weight is."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight.clone(), None)

    def __call__(self, x: Tensor) -> Tensor:
        return self.by_kernel(x, x.dtype)


def _measure(
    stage: Stage, name: str, bits: int, pack: Callable[[Tensor], Linear], weight: Tensor, of_rows: Sequence[int]
) -> None:
    stored = weight.numel() * bits // 8
    sets = [pack(weight) for _ in range(min(_MOST_SETS, ceil(stage.scale.rotated_bytes / stored)))]
    for rows in of_rows:
        x = torch.randn((rows, weight.shape[1]), generator=stage.generator, device=stage.device).to(weight.dtype)
        timed = replayed_ms if rows <= _REPLAYED_ROWS else median_ms
        milliseconds = timed([partial(linear, x) for linear in sets], stage.device, stage.scale.repeats)
        detail = f"{milliseconds * 1e3:.1f} us"
        if rows <= _REPLAYED_ROWS:
            stage.measured(names.product(name, rows), stored / milliseconds / 1e6, "GB/s", detail)
        else:
            flop = 2 * rows * weight.numel()
            stage.measured(names.product(name, rows), flop / milliseconds / 1e9, "TFLOP/s", detail)
        stage.measured(names.speed(name, rows), 1 / milliseconds, "products/ms")
