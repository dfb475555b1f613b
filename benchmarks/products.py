"""Products of rows with a weight in bf16: ours, oneDNN's and torch's, beside the machine's limits.

`python -m benchmarks.products`. Shapes are those of a 0.5 B model and of SmolLM2-135M; as many weights in turn as take
128 MB, so that they come from memory as they do in a step. The best of several rounds over all of them, the three in
turn: how fast weights are read, at few rows, and the rate of arithmetic, at many.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from benchmarks.limits import measured_limits, print_limits
from kernels.cpu import native
from kernels.cpu.linear import PackedLinear, PlainLinear

SHAPES = {"gate and up, 0.5 B": (7168, 1280), "down, 0.5 B": (1280, 3584), "gate and up, 135 M": (3072, 576)}
ROWS = (1, 4, 8, 16, 32, 128, 512)
WEIGHTS_BYTES = 128 * 10**6
ROUNDS = 5

Product = Callable[[Tensor], Tensor]


def seconds(systems: Mapping[str, Sequence[Product]], rows: int, inputs: int) -> dict[str, float]:
    """Of one product of each system, in its best round."""
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(0)).bfloat16()
    best = dict.fromkeys(systems, float("inf"))
    for _ in range(ROUNDS):
        for name, products in systems.items():
            started = time.perf_counter()
            for product in products:
                product(x)
            best[name] = min(best[name], (time.perf_counter() - started) / len(products))
    return best


def main() -> None:
    native.start(torch.get_num_threads())
    if native.level() is None:
        print("the native library is not built")
        return
    print_limits(measured_limits())
    for shape, (outputs, inputs) in SHAPES.items():
        count = WEIGHTS_BYTES // (2 * outputs * inputs)
        weights = [torch.randn(outputs, inputs).bfloat16() / 32 for _ in range(count)]
        systems: dict[str, Sequence[Product]] = {
            "ours": [native.NativeLinear(weight, None) for weight in weights],
            "oneDNN": [PackedLinear(weight, None) for weight in weights],
            "torch": [PlainLinear(weight, None) for weight in weights],
        }
        print(f"{shape}: [{outputs}, {inputs}], {count} of them")
        with torch.inference_mode():
            for rows in ROWS:
                took = seconds(systems, rows, inputs)
                read = {name: 2 * outputs * inputs / each / 1e9 for name, each in took.items()}
                rate = {name: 2 * rows * outputs * inputs / each / 1e9 for name, each in took.items()}
                told = ", ".join(f"{name} {read[name]:.1f} GB/s {rate[name]:.0f} GFLOP/s" for name in took)
                over = ", ".join(f"{took[name] / took['ours']:.2f} x {name}" for name in took if name != "ours")
                print(f"  {rows:3} rows: {told}; ours {over}", flush=True)


if __name__ == "__main__":
    main()
