"""Variants of one small kernel, a sound one and others with one flaw each, to test what finds flaws."""

from dataclasses import replace

import triton
import triton.language as tl

from kernels.triton.capability import HOPPER
from kernels.triton.dependent_launch import wait_for_predecessor
from kernels.triton.variants import KernelVariant


@triton.jit
def product_kernel(left, right, output, depth, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """left bf16 [M, depth] times right bf16 [depth, N] into output float32 [M, N]. Grid: (1)."""
    rows = tl.arange(0, M)[:, None]
    columns = tl.arange(0, N)[None, :]
    across = tl.arange(0, K)
    total = tl.zeros([M, N], tl.float32)
    for start in tl.range(0, depth, K):
        left_tile = tl.load(left + rows * depth + start + across[None, :])
        right_tile = tl.load(right + (start + across[:, None]) * N + columns)
        total = tl.dot(left_tile, right_tile, total)
    tl.store(output + rows * N + columns, total)


@triton.jit(do_not_specialize_on_alignment=["output"])
def refused_kernel(output, SIDE: tl.constexpr):
    """Compiles with a side of 0 alone."""
    tl.static_assert(SIDE == 0, "a side that no kernel has")
    tl.store(output, SIDE)


@triton.jit
def early_kernel(values):
    """Adds what it has loaded before it waited. Grid: (1)."""
    before = tl.load(values)
    wait_for_predecessor()
    tl.store(values, before + tl.load(values))


@triton.jit
def branching_kernel(values, count):
    """Waits in some programs. Grid: (count)."""
    if tl.program_id(0) < count:
        wait_for_predecessor()
        tl.store(values, 1)


def tiles(m: int, n: int, k: int) -> dict[str, int]:
    return {"M": m, "N": n, "K": k}


SOUND = KernelVariant(
    "sound",
    product_kernel,
    {"left": "*bf16", "right": "*bf16", "output": "*fp32", "depth": "i32"},
    tiles(64, 64, 64),
    frozenset({"left", "right", "output", "depth"}),
    wide_loads=True,
    pipelined_loads=True,
    warpgroup_matmul=True,
)


def flawed_variants(capability: int = HOPPER) -> tuple[KernelVariant, ...]:
    return (
        SOUND,
        replace(SOUND, name="spilled", constexprs=tiles(256, 256, 64)),
        replace(SOUND, name="single-buffered", num_stages=2),
        replace(SOUND, name="not-pipelined", num_stages=1),
        replace(SOUND, name="narrow", aligned=frozenset({"output"})),
        replace(SOUND, name="too-much-shared", constexprs=tiles(128, 256, 128), num_warps=8, num_stages=4),
        replace(SOUND, name="single-warps", constexprs=tiles(16, 64, 64)),
        replace(SOUND, name="crowded", programs=9),
        KernelVariant("early", early_kernel, {"values": "*i32"}, {}),
        KernelVariant("branching", branching_kernel, {"values": "*i32", "count": "i32"}, {}),
        KernelVariant("aligned-in-vain", refused_kernel, {"output": "*i32"}, {"SIDE": 0}, frozenset({"output"})),
        KernelVariant("refused", refused_kernel, {"output": "*i32"}, {"SIDE": 1}),
    )
