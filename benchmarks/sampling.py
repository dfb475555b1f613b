"""Draws from a step's logits: ours in native code and on numpy, and as torch's own functions have it, in one run.

`python -m benchmarks.sampling [threads]`. Temperature 1. Flat logits are normal numbers, as random weights make them:
three quarters of them survive top-p. Peaked ones have twenty that are far above the others, as a trained model's have.
Microseconds a call, the median of some rounds, the three in turn. torch's way with top-p is softmax, sort, running sum
and multinomial; with top-k it is topk, softmax and multinomial.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import fields

import torch
from torch import Tensor

from kernels.cpu import native, sampling
from kernels.exchange import array_of
from kernels.host import HostColumns, SamplingColumns
from kernels.noise import noise_key

VOCABULARIES = (32_000, 49_152, 151_936)
ROWS = (1, 32)
TOP_P, TOP_K = 0.95, 50
SECONDS, FEWEST_ROUNDS, MOST_ROUNDS = 0.25, 3, 40

KINDS = ("greedy", "all", "top-k", "top-p", "top-p, peaked")

Draw = Callable[[Tensor], object]


def logits_of(kind: str, rows: int, vocab_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((rows, vocab_size), generator=generator)
    if kind.endswith("peaked"):
        logits[:, torch.randint(0, vocab_size, (20,), generator=generator)] += torch.linspace(8, 16, 20)
    return logits


def columns_of(kind: str, rows: int, vocab_size: int) -> SamplingColumns[Tensor]:
    return SamplingColumns(
        inverse_temperature=torch.ones(rows),
        noise_scale=torch.full((rows,), 0.0 if kind == "greedy" else 1.0),
        top_k=torch.full((rows,), TOP_K if kind == "top-k" else vocab_size),
        top_p=torch.full((rows,), TOP_P if kind.startswith("top-p") else 1.0),
        min_p=torch.zeros(rows),
        keys=torch.tensor([noise_key(1, row) for row in range(rows)]),
    )


def in_arrays(columns: SamplingColumns[Tensor]) -> HostColumns:
    return SamplingColumns(*(array_of(getattr(columns, field.name)) for field in fields(columns)))


def by_torch(kind: str, logits: Tensor) -> Tensor:
    if kind == "greedy":
        return logits.argmax(dim=-1)
    if kind == "all":
        return torch.multinomial(logits.softmax(dim=-1), 1)[:, 0]
    if kind == "top-k":
        largest = logits.topk(TOP_K, dim=-1)
        return largest.indices.gather(1, torch.multinomial(largest.values.softmax(dim=-1), 1))[:, 0]
    ordered, tokens = logits.softmax(dim=-1).sort(dim=-1, descending=True)
    ordered[ordered.cumsum(dim=-1) - ordered >= TOP_P] = 0
    return tokens.gather(1, torch.multinomial(ordered, 1))[:, 0]


def median_us(systems: Mapping[str, Draw], logits: Tensor) -> dict[str, float]:
    """Of a call of each system, on a copy of the logits of its own."""
    took: dict[str, list[float]] = {name: [] for name in systems}
    until = time.perf_counter() + SECONDS
    for rounds in range(MOST_ROUNDS):
        if rounds >= FEWEST_ROUNDS and time.perf_counter() > until:
            break
        for name, draw in systems.items():
            copy = logits.clone()
            started = time.perf_counter()
            draw(copy)
            took[name].append(1e6 * (time.perf_counter() - started))
    return {name: statistics.median(each) for name, each in took.items()}


def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(threads)
    native.start(threads)
    if (level := native.level()) is None:
        print("the native library is not built")
        return
    ours = native.NativeSampling()
    print(f"{threads} threads, {level.name}; us a call")
    print(f"{'vocabulary':>10} {'rows':>4}  {'':14} {'native':>9} {'numpy':>9} {'torch':>9}")
    for vocab_size in VOCABULARIES:
        for rows in ROWS:
            for kind in KINDS:
                columns = columns_of(kind, rows, vocab_size)
                arrays = in_arrays(columns)
                systems: dict[str, Draw] = {
                    "native": lambda logits, columns=arrays: ours.sample(array_of(logits), columns),
                    "numpy": lambda logits, columns=columns: sampling.sample(logits, columns),
                    "torch": lambda logits, kind=kind: by_torch(kind, logits),
                }
                took = median_us(systems, logits_of(kind, rows, vocab_size))
                told = " ".join(f"{us:9.0f}" for us in took.values())
                print(f"{vocab_size:10} {rows:4}  {kind:14} {told}", flush=True)


if __name__ == "__main__":
    main()
