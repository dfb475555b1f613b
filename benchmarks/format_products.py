"""Products of rows with a weight in each quantised format, compared with our bf16 of the same shape in the same run.

`python -m benchmarks.format_products [--formats q4_0,u4_128] [--rows 1,8,16] [--one-thread] [SHAPE ...]`. Weights
are random blocks, as many in turn as take 128 MB in bf16. A ratio is bf16's time over the format's, the median of those
within a round, with the quarter points of all rounds: above 1 the format is faster. On a machine that others use,
`--one-thread` counts the processor time of one thread, which waits for memory alone.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.format_weights import FORMATS, random_weight
from kernels.arrays import BFLOAT16, Array
from kernels.cpu import native
from kernels.cpu.cores import usable_cores
from kernels.cpu.memory import WeightMemory
from kernels.cpu.native import NativeLinear
from kernels.weights import DENSE

SHAPE = (3584, 1280)
ROWS = (1, 2, 4, 8, 16, 32, 64, 256)
WEIGHTS_BYTES = 128 * 10**6
FLOPS = 10**11
ROUNDS = 9

Products = Sequence[Callable[[Array], Array]]


def ratios(plain: Products, quantized: Products, x: Array, rounds: int, clock: Callable[[], float]) -> list[float]:
    """bf16's time over the format's in each round; which comes first alternates."""
    found = []
    for index in range(rounds):
        took = {}
        for products in (plain, quantized) if index % 2 else (quantized, plain):
            started = clock()
            for product in products:
                product(x)
            took[id(products)] = clock() - started
        found.append(took[id(plain)] / took[id(quantized)])
    return found


def weights(name: str, outputs: int, inputs: int, count: int) -> Products:
    memory = WeightMemory()
    stored = [random_weight(name, outputs, inputs, seed) for seed in range(2)]
    return [NativeLinear([stored[index % 2]], None, memory) for index in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", metavar="OUTPUTSxINPUTS")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--one-thread", action="store_true")
    arguments = parser.parse_args()
    threads = 1 if arguments.one_thread else usable_cores()
    clock = time.thread_time if arguments.one_thread else time.perf_counter
    native.start(threads)
    level = native.level()
    if level is None:
        print("the native library is not built")
        return
    print(f"level {level.name}, {threads} threads, load {os.getloadavg()[0]:.1f}")
    rows = [int(each) for each in arguments.rows.split(",")]
    for outputs, inputs in [tuple(map(int, each.split("x"))) for each in arguments.shapes] or [SHAPE]:
        bytes_each = 2 * outputs * inputs
        count = max(1, WEIGHTS_BYTES // bytes_each)
        plain = weights(DENSE, outputs, inputs, count)
        print(f"[{outputs}, {inputs}], {count} of them; bf16's time over the format's (quarter points)")
        for name in arguments.formats.split(","):
            quantized = weights(name, outputs, inputs, count)
            cells = []
            for number in rows:
                x = np.random.default_rng(0).standard_normal((number, inputs)).astype(BFLOAT16)
                used = max(1, min(count, FLOPS // (number * bytes_each)))
                found = ratios(plain[:used], quantized[:used], x, arguments.rounds, clock)
                low, _, high = statistics.quantiles(found, n=4)
                cells.append(f"{number}: {statistics.median(found):.2f} ({low:.2f} to {high:.2f})")
            print(f"  {name:8} {'  '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
