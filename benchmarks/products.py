"""Products of rows with a weight in bf16: ours and oneDNN's, compared with the machine's limits.

`python -m benchmarks.products [OUTPUTSxINPUTS ...]`. Shapes are those of models of 0.1 and 0.5 billion parameters; as
many weights in turn as take 128 MB, so that they come from memory as they do in a step. The median of several rounds
over all of them, the systems in turn: how fast weights are read, at few rows, and the rate of arithmetic, at many.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.limits import measured_limits, print_limits
from kernels.cpu import native
from kernels.cpu.linear import PackedLinear
from kernels.cpu.memory import WeightMemory
from kernels.cpu.native import NativeLinear
from kernels.exchange import array_of
from kernels.weights import StoredWeight

SHAPES = ((2688, 768), (768, 2688), (3072, 576), (7168, 1280), (1280, 3584))
ROWS = (1, 2, 4, 8, 16, 32, 64, 256, 1024)
WEIGHTS_BYTES = 128 * 10**6
ROUNDS = 5
FLOPS = 2 * 10**11
PAUSE_SECONDS = 0.005  # until the other library's threads no longer look for work on our cores


@dataclass(frozen=True, slots=True)
class System:
    """Its weights, and rows [T, in] in the form that it takes them in."""

    products: Sequence[Callable[[Any], Any]]
    taking: Callable[[Tensor], Any]


def seconds(systems: Mapping[str, System], rows: int, inputs: int, count: int) -> dict[str, float]:
    """Seconds of one product of each system, in its median round over `count` weights."""
    numbers = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(0)).bfloat16()
    took: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(ROUNDS):
        for name, system in systems.items():
            x = system.taking(numbers)
            time.sleep(PAUSE_SECONDS)
            started = time.perf_counter()
            for product in system.products[:count]:
                product(x)
            took[name].append((time.perf_counter() - started) / count)
    return {name: statistics.median(each) for name, each in took.items()}


def measure(outputs: int, inputs: int) -> None:
    bytes_each = 2 * outputs * inputs
    weights = [torch.randn(outputs, inputs).bfloat16() / 32 for _ in range(max(1, WEIGHTS_BYTES // bytes_each))]
    memory = WeightMemory()
    own = [NativeLinear([StoredWeight.dense(array_of(each))], None, memory) for each in weights]
    systems = {
        "ours": System(own, array_of),
        "oneDNN": System([PackedLinear(each, None) for each in weights], lambda x: x),
    }
    print(f"[{outputs}, {inputs}], {len(weights)} of them")
    for rows in ROWS:
        count = max(1, min(len(weights), FLOPS // (rows * bytes_each)))
        took = seconds(systems, rows, inputs, count)
        told = ", ".join(
            f"{name} {bytes_each / each / 1e9:.1f} GB/s {rows * bytes_each / each / 1e9:.0f} GFLOP/s"
            for name, each in took.items()
        )
        print(f"  {rows:4} rows: {told}; ours {took['oneDNN'] / took['ours']:.2f} x oneDNN", flush=True)


def main() -> None:
    native.start(torch.get_num_threads())
    if native.level() is None:
        print("the native library is not built")
        return
    shapes = [tuple(map(int, each.split("x"))) for each in sys.argv[1:]] or SHAPES
    print_limits(measured_limits())
    with torch.inference_mode():
        for outputs, inputs in shapes:
            measure(outputs, inputs)


if __name__ == "__main__":
    main()
