"""The cost of adapters in a step: `python -m benchmarks.adapters_step [threads]`.

The forward pass and the head's product of decode steps, and of a prompt's chunk, of random weights in SmolLM2-135M's
shape: with one adapter for all rows, and with as many as rows, up to 20, as a share of the same step without, in
alternating turns. An adapter of rank 8 changes queries and values, one of rank 16 all linears of a layer. Next to each
ratio, the bytes that the step reads with the adapters' weights, as a share of those without: the least ratio of a step
that waits for memory.
"""

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.checkpoints import smollm2_shape
from benchmarks.intervals import quantile
from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.config import ModelConfig
from engine.models.loader import load_model
from engine.models.native_model import NativeModel
from kernels.adapters import AdapterWeights, LayerAdapter, LowRankPart
from kernels.arrays import Array, Floats, Ints, int_array
from kernels.cpu import native
from kernels.cpu.native_ops import NativeOps
from kernels.host import StepRows

SLOTS = 20
CONTEXT = 300
BLOCKS = 40
"""Of a row's KV."""
STEPS: Mapping[str, tuple[int, int]] = {"1 row": (1, 1), "8 rows": (8, 1), "32 rows": (32, 1), "chunk of 256": (1, 256)}
"""Rows, and tokens of each."""
SECONDS = 6.0
LEAST_TURNS = 15


@dataclass(frozen=True)
class Step:
    """A step's tokens and rows, without adapters."""

    token_ids: Ints
    rows: StepRows
    kv: Array

    @classmethod
    def of(cls, model: NativeModel, count: int, tokens: int) -> "Step":
        tables = np.arange(count * BLOCKS, dtype=np.int64).reshape(count, BLOCKS)
        rows = StepRows(tables, int_array([tokens] * count), int_array([CONTEXT + tokens] * count))
        return cls(np.arange(count * tokens, dtype=np.int64), rows, model.allocate_kv(count * BLOCKS))

    def seconds(self, model: NativeModel, slots: Ints | None) -> float:
        """Of one pass with the adapters in these slots, by row."""
        rows = StepRows(self.rows.block_tables, self.rows.query_lens, self.rows.context_lens, adapters=slots)
        last = self.rows.query_lens.cumsum() - 1
        started = time.perf_counter()
        model.logits(model.forward(self.token_ids, rows, self.kv, last))
        return time.perf_counter() - started


def random_adapter(config: ModelConfig, rank: int, all_linears: bool, seed: int) -> AdapterWeights:
    """An adapter of queries and values, or of all linears."""
    generator = np.random.default_rng(seed)

    def part(first: int, outputs: int, inputs: int) -> LowRankPart:
        def numbers(*shape: int) -> Floats:
            drawn: Floats = generator.standard_normal(shape, np.float32) * np.float32(0.05)
            return drawn

        return LowRankPart(numbers(rank, inputs), numbers(outputs, rank), first)

    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def layer() -> LayerAdapter:
        query, value = part(0, queries, hidden), part(queries + keys, keys, hidden)
        if not all_linears:
            return LayerAdapter(qkv=(query, value))
        return LayerAdapter(
            qkv=(query, part(queries, keys, hidden), value),
            output=(part(0, hidden, queries),),
            gate_up=(part(0, inner, hidden), part(inner, inner, hidden)),
            down=(part(0, hidden, inner),),
        )

    return AdapterWeights([layer() for _ in range(config.num_layers)])


def slots_of(kind: str, rows: int) -> Ints | None:
    """The slot of each row's adapter."""
    if kind == "none":
        return None
    return int_array([row % SLOTS if kind == "distinct" else 0 for row in range(rows)])


def measure(model: NativeModel, step: Step, kinds: Sequence[str]) -> dict[str, list[float]]:
    """Seconds of the step with each kind of slots, in turn."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    slots = {kind: slots_of(kind, len(step.rows.query_lens)) for kind in kinds}
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until or len(seconds[kinds[0]]) < LEAST_TURNS:
        for kind in kinds:
            seconds[kind].append(step.seconds(model, slots[kind]))
    return seconds


def read_bytes(config: ModelConfig) -> int:
    """Bytes of the weights that a step reads: of the layers in bf16, and of the head."""
    hidden, queries = config.hidden_size, config.num_heads * config.head_dim
    attention = 2 * hidden * (queries + config.num_kv_heads * config.head_dim)
    layer = attention + 3 * hidden * config.intermediate_size
    return 2 * (config.num_layers * layer + config.vocab_size * hidden)


def main() -> None:
    level = native.level()
    if level is None:
        print("the native library is not built")
        return
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as root:
        folder = smollm2_shape(Path(root))
        checkpoint = open_checkpoint(folder)
        model = load_model(checkpoint, NativeOps(threads), CONTEXT + 512)
    assert isinstance(model, NativeModel)
    model.allocate_adapters(SLOTS)
    model_bytes = read_bytes(model.config)
    print(f"{threads} threads, {level.name.lower()}: time of a step, of that without adapters; medians")
    steps = {name: Step.of(model, rows, tokens) for name, (rows, tokens) in STEPS.items()}
    for name, rank, all_linears in (("rank 8 on q, v", 8, False), ("rank 16 on all linears", 16, True)):
        packed = [model.pack_adapter(random_adapter(model.config, rank, all_linears, slot)) for slot in range(SLOTS)]
        for slot, adapter in enumerate(packed):
            model.put_adapter(slot, adapter)
        share = packed[0].bytes / model_bytes
        print(f"{name}: an adapter of {packed[0].bytes / 1e6:.2f} MB, {share:.1%} of the model's bytes")
        for label, step in steps.items():
            rows = len(step.rows.query_lens)
            kinds = ["none", "one", "distinct"] if rows > 1 else ["none", "one"]
            seconds = measure(model, step, kinds)
            print(f"  {label:12} {np.median(seconds['none']) * 1e3:7.2f} ms", end="")
            for kind in kinds[1:]:
                ratios = [own / base for own, base in zip(seconds[kind], seconds["none"], strict=True)]
                count = 1 if kind == "one" else min(rows, SLOTS)
                print(f"  {count:2} adapters {quantile(ratios, 0.5):.3f}, bytes {1 + count * share:.3f}", end="")
            print(flush=True)


if __name__ == "__main__":
    main()
