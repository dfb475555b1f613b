"""Paged attention: native, over KV in bf16 and in int8, and torch's, compared with the machine's limits, in one run.

`python -m benchmarks.attention`. Heads are those of SmolLM2-135M (9 and 3 of 64 dimensions), of a 0.5 B model (20 and
4 of 64) and of one with 16 and 8 of 128. Layers of KV are taken in turn, 256 MB of them, so that keys and values come
from memory as they do in a step; the best of several rounds. What is read is the KV of the contexts, once; what is
computed is what causal attention needs: two products of D numbers for each query and each key that it sees.
"""

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.limits import measured_limits, print_limits
from kernels.cpu import native
from kernels.cpu.attention import CpuAttentionPlan
from kernels.cpu.attention import attend as torch_attend
from kernels.cpu.native.abi import KV, Heads, Rows
from kernels.cpu.native.library import load
from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata
from kernels.reference_int8 import to_int8

HEADS = {"9/3 of 64": (9, 3, 64), "20/4 of 64": (20, 4, 64), "16/8 of 128": (16, 8, 128)}
STEPS = {
    "1 row, 500": [(1, 500)],
    "1 row, 4000": [(1, 4000)],
    "32 rows, 300": [(1, 300)] * 32,
    "8 rows of 5, 300": [(5, 300)] * 8,
    "chunk of 512": [(512, 512)],
    "512 behind 1536": [(512, 2048)],
}
KV_BYTES = 256 * 10**6
MOST_LAYERS = 64
ROUNDS = 5


@dataclass(frozen=True)
class Setting:
    """Layers of KV bf16 [N, 16, 2, Hkv, D], and the step's queries with room for keys and values behind them."""

    layers: Sequence[Tensor]
    qkv: Tensor
    heads: tuple[int, int, int]
    metadata: AttentionMetadata


def setting(rows: list[tuple[int, int]], heads: tuple[int, int, int]) -> Setting:
    query_heads, kv_heads, head_dim = heads
    blocks = [math.ceil(context / BLOCK_TOKENS) for _, context in rows]
    order = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(0))
    tables = torch.zeros((len(rows), max(blocks)), dtype=torch.int64)
    for row, taken in enumerate(order.split(blocks)):
        tables[row, : len(taken)] = taken
    shape = (sum(blocks), BLOCK_TOKENS, 2, kv_heads, head_dim)
    count = max(1, min(MOST_LAYERS, KV_BYTES // (2 * math.prod(shape))))
    layers = [torch.randn(shape).bfloat16() for _ in range(count)]
    qkv = torch.randn(sum(tokens for tokens, _ in rows), query_heads + 2 * kv_heads, head_dim).bfloat16()
    metadata = AttentionMetadata(tables, [tokens for tokens, _ in rows], [context for _, context in rows])
    return Setting(layers, qkv, heads, metadata)


def native_attention(of: Setting, kind: KV) -> Callable[[Tensor], None]:
    library = load()
    assert library is not None
    query_heads, kv_heads, head_dim = of.heads
    lens, contexts, tables = of.metadata.query_lens, of.metadata.context_lens, of.metadata.block_tables
    heads = Heads(query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, kv=kind)
    rows = Rows(len(lens), len(of.qkv), lens.ctypes.data, contexts.ctypes.data, tables.data_ptr(), tables.stride(0))
    out = torch.empty(len(of.qkv), query_heads * head_dim, dtype=torch.bfloat16)
    count = library.tp_attend_scratch_bytes(ctypes.byref(heads), ctypes.byref(rows))
    scratch = torch.empty(count + 64, dtype=torch.uint8)
    scratch = scratch[-scratch.data_ptr() % 64 :]

    def attend(layer: Tensor) -> None:
        library.tp_attend(
            ctypes.byref(heads),
            ctypes.byref(rows),
            of.qkv.data_ptr(),
            of.qkv.stride(0),
            layer.data_ptr(),
            0,
            out.data_ptr(),
            out.stride(0),
            scratch.data_ptr(),
        )

    return attend


def seconds(of: Setting) -> tuple[float, float, float]:
    """Of one layer, native, the same over int8, and torch's, in turn: each in its best round."""
    kept = to_int8(of.layers[0])
    in_int8 = [kept.clone() for _ in of.layers]
    own, short = native_attention(of, KV.BF16), native_attention(of, KV.INT8)
    plan = CpuAttentionPlan(of.metadata, torch.bfloat16).under(None)
    query = of.qkv[:, : of.heads[0]]
    best = [math.inf] * 3
    for _ in range(ROUNDS):
        systems = ((own, of.layers), (short, in_int8), (lambda layer: torch_attend(query, layer, plan), of.layers))
        for system, (attend, layers) in enumerate(systems):
            started = time.perf_counter()
            for layer in layers:
                attend(layer)
            best[system] = min(best[system], (time.perf_counter() - started) / len(of.layers))
    return best[0], best[1], best[2]


def pairs(rows: list[tuple[int, int]]) -> int:
    """Of a query and a key that it sees, of one head."""
    return sum(tokens * context - tokens * (tokens - 1) // 2 for tokens, context in rows)


def main() -> None:
    native.start(torch.get_num_threads())
    if native.level() is None:
        print("the native library is not built")
        return
    print_limits(measured_limits())
    print(f"{'heads':12} {'step':17} {'us a layer':>10} {'int8':>8} {'torch':>8} {'x':>5} {'GB/s':>6} {'GFLOP/s':>8}")
    with torch.inference_mode():
        for name, heads in HEADS.items():
            for step, rows in STEPS.items():
                of = setting(rows, heads)
                own, short, other = seconds(of)
                read = 4 * heads[1] * heads[2] * sum(context for _, context in rows) / own / 1e9
                rate = 4 * heads[0] * heads[2] * pairs(rows) / own / 1e9
                times = f"{own * 1e6:10.1f} {short * 1e6:8.1f} {other * 1e6:8.1f}"
                print(f"{name:12} {step:17} {times} {other / own:5.2f} {read:6.1f} {rate:8.0f}", flush=True)


if __name__ == "__main__":
    main()
