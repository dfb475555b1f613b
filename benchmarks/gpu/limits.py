"""This device's limits, measured in the run that quotes them."""

import torch

from benchmarks.gpu.names import COPY, MATMUL
from benchmarks.gpu.stage import Stage
from benchmarks.gpu.timing import median_ms

_SETS = 3


def run(stage: Stage) -> None:
    stage.attempt(COPY, lambda: _copy(stage))
    stage.attempt(MATMUL, lambda: _matmul(stage))


def _copy(stage: Stage) -> None:
    """Bytes read plus bytes written, of copies between buffers that take turns."""
    count = stage.scale.copy_bytes // 2
    buffers = [torch.empty(count, dtype=torch.bfloat16, device=stage.device) for _ in range(_SETS)]
    for buffer in buffers:
        buffer.normal_(generator=stage.generator)
    pairs = [(buffers[index], buffers[index - 1]) for index in range(_SETS)]
    copies = [lambda pair=pair: pair[0].copy_(pair[1]) for pair in pairs]  # type: ignore[misc]
    milliseconds = median_ms(copies, stage.device, stage.scale.repeats)
    stage.measured(COPY, 2 * 2 * count / milliseconds / 1e6, "GB/s", f"read and written, {2 * count / 1e9:.2f} GB each")


def _matmul(stage: Stage) -> None:
    size = stage.scale.matmul_size
    inputs = [torch.empty((2, size, size), dtype=torch.bfloat16, device=stage.device) for _ in range(_SETS)]
    for each in inputs:
        each.normal_(generator=stage.generator)
    output = torch.empty((size, size), dtype=torch.bfloat16, device=stage.device)
    products = [lambda each=each: torch.mm(each[0], each[1], out=output) for each in inputs]  # type: ignore[misc]
    milliseconds = median_ms(products, stage.device, stage.scale.repeats)
    stage.measured(MATMUL, 2 * size**3 / milliseconds / 1e9, "TFLOP/s", f"{size} cubed, random numbers")
