"""Variants of one small kernel, a sound one and others with one flaw each, to test what finds flaws."""

import triton
import triton.language as tl

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


@triton.jit
def refused_kernel(output, SIDE: tl.constexpr):
    """Never compiles."""
    tl.static_assert(SIDE == 0, "a side that no kernel has")
    tl.store(output, SIDE)


ALIGNED = frozenset({"left", "right", "output", "depth"})


def product(
    name: str, m: int, n: int, k: int = 64, *, aligned: frozenset[str] = ALIGNED, warps: int = 4, stages: int = 3
) -> KernelVariant:
    return KernelVariant(
        name,
        product_kernel,
        {"left": "*bf16", "right": "*bf16", "output": "*fp32", "depth": "i32"},
        {"M": m, "N": n, "K": k},
        aligned,
        num_warps=warps,
        num_stages=stages,
        wide_loads=True,
        pipelined_loads=True,
        warpgroup_matmul=True,
    )


def flawed_variants() -> tuple[KernelVariant, ...]:
    return (
        product("sound", 64, 64),
        product("spilled", 256, 256),
        product("single-buffered", 64, 64, stages=2),
        product("not-pipelined", 64, 64, stages=1),
        product("narrow", 64, 64, aligned=frozenset({"output"})),
        product("too-much-shared", 128, 256, 128, warps=8, stages=4),
        product("single-warps", 16, 64),
        KernelVariant("refused", refused_kernel, {"output": "*i32"}, {"SIDE": 1}),
    )
