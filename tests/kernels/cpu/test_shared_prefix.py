"""Native attention of rows with a common prefix: its blocks are read once, and no row's result changes."""

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels.cpu.native import Level
from kernels.cpu.native.abi import KV, Heads, Rows
from kernels.cpu.native.library import load
from kernels.layout import BLOCK_TOKENS, int8_block_bytes
from tests.kernels.cpu.paged import levels, using

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

PART_BLOCKS = 16
NO_BLOCK = -(2**40)
NAN = 0x7FC0
"""In bf16."""

Bits = NDArray[np.uint16]
"""bf16 numbers."""


@dataclass(frozen=True)
class Row:
    """`alike`: number of blocks at its beginning that it shares with the row before, bounded by the blocks of both."""

    tokens: int
    context: int
    alike: int


@dataclass(frozen=True)
class Step:
    """Block tables int64 [R, blocks] with nothing past a row's context, and how many blocks there are."""

    rows: tuple[Row, ...]
    tables: NDArray[np.int64]
    blocks: int

    def alone(self, row: int) -> "Step":
        return Step((self.rows[row],), self.tables[row : row + 1].copy(), self.blocks)


@dataclass(frozen=True)
class Shape:
    group: int
    kv_heads: int
    head_dim: int


def step_of(*rows: Row, seed: int = 0) -> Step:
    counts = [-(-row.context // BLOCK_TOKENS) for row in rows]
    order = np.random.default_rng(seed).permutation(sum(counts))
    tables = np.full((len(rows), max(counts) + 1), NO_BLOCK, dtype=np.int64)
    taken = 0
    for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
        alike = min(row.alike, count, counts[index - 1]) if index else 0
        tables[index, :alike] = tables[index - 1, :alike]
        tables[index, alike:count] = order[taken : taken + count - alike]
        taken += count - alike
    return Step(rows, tables, len(order))


def random_bf16(rng: np.random.Generator, *shape: int) -> Bits:
    return (rng.standard_normal(shape, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def random_kv(step: Step, shape: Shape, kind: KV, seed: int = 1) -> NDArray[np.uint8]:
    """[N, bytes of a block]; in slots that belong to no row, bf16 is NaN."""
    rng = np.random.default_rng(seed)
    if kind is KV.INT8:
        blocks = rng.integers(0, 256, (step.blocks, int8_block_bytes(shape.kv_heads, shape.head_dim)), dtype=np.uint8)
        scales = 2 * BLOCK_TOKENS * shape.kv_heads
        blocks[:, -2 * scales :] = random_bf16(rng, step.blocks, scales).view(np.uint8)
        return blocks
    kv = random_bf16(rng, step.blocks, BLOCK_TOKENS, 2 * shape.kv_heads * shape.head_dim)
    used = np.zeros((step.blocks, BLOCK_TOKENS), dtype=bool)
    for row, table in zip(step.rows, step.tables, strict=True):
        at = np.arange(row.context)
        used[table[at // BLOCK_TOKENS], at % BLOCK_TOKENS] = True
    kv[~used] = NAN
    return kv.reshape(step.blocks, -1).view(np.uint8)


def aligned(count: int) -> NDArray[np.uint8]:
    """`count` bytes at a multiple of 64, followed by 64 that no kernel may touch."""
    memory = np.full(count + 128, 0x5A, dtype=np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + count + 64]


def attend(
    library: ctypes.CDLL, step: Step, qkv: Bits, kv: NDArray[np.uint8], shape: Shape, kind: KV, window: int = 0
) -> Bits:
    """bf16 [T, Hq D] of queries in qkv [T, (Hq + 2 Hkv) D]."""
    lens = np.array([row.tokens for row in step.rows], dtype=np.int64)
    contexts = np.array([row.context for row in step.rows], dtype=np.int64)
    width = shape.group * shape.kv_heads * shape.head_dim
    rows = Rows(
        *(len(lens), len(qkv), lens.ctypes.data, contexts.ctypes.data), *(step.tables.ctypes.data, step.tables.shape[1])
    )
    heads = Heads(query_heads=shape.group * shape.kv_heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim, kv=kind)
    count = library.tp_attend_scratch_bytes(ctypes.byref(heads), ctypes.byref(rows))
    scratch, out = aligned(count), np.zeros((len(qkv), width), dtype=np.uint16)
    library.tp_attend(
        *(ctypes.byref(heads), ctypes.byref(rows), qkv.ctypes.data, qkv.shape[1], kv.ctypes.data, window),
        *(out.ctypes.data, width, scratch.ctypes.data),
    )
    assert (scratch[count:] == 0x5A).all(), "what lies behind the scratch was written"
    return out


def assert_same_alone(library: ctypes.CDLL, step: Step, shape: Shape, kind: KV, window: int = 0, seed: int = 2) -> None:
    """Every row's result in the batch equals its result alone, to the bit, and is finite."""
    tokens = sum(row.tokens for row in step.rows)
    width = (shape.group + 2) * shape.kv_heads * shape.head_dim
    qkv, kv = random_bf16(np.random.default_rng(seed), tokens, width), random_kv(step, shape, kind)
    together = attend(library, step, qkv, kv, shape, kind, window)
    assert np.isfinite((together.astype(np.uint32) << 16).view(np.float32)).all()
    first = 0
    for index, row in enumerate(step.rows):
        own = slice(first, first + row.tokens)
        alone = attend(library, step.alone(index), qkv[own], kv, shape, kind, window)
        assert np.array_equal(alone, together[own]), f"row {index}: {row}"
        first += row.tokens


both_kinds = pytest.mark.parametrize("kind", list(KV), ids=lambda kind: kind.name)
PREFIX = 2 * PART_BLOCKS
STEPS = {
    "decodes": step_of(*(Row(1, 520 + 30 * index, PREFIX) for index in range(9))),
    "more than a tile": step_of(*(Row(1, 530, PREFIX) for _ in range(50))),
    "nothing of their own but a token": step_of(*(Row(1, 513, PREFIX) for _ in range(3))),
    "a prompt again": step_of(Row(1, 512, PREFIX), Row(1, 512, PREFIX - 1), Row(1, 700, PREFIX - 1)),
    "drafts and short chunks": step_of(Row(4, 600, 0), Row(1, 540, PREFIX), Row(5, 521, PREFIX), Row(60, 640, PREFIX)),
    "two prompts": step_of(Row(1, 800, 0), Row(1, 820, 48), Row(1, 600, 0), Row(1, 580, 35), Row(1, 1000, 17)),
    "ever less": step_of(Row(1, 1100, 0), Row(1, 1100, 64), Row(1, 900, 48), Row(2, 700, 32), Row(1, 400, 16)),
    "queries in what is shared": step_of(Row(5, 258, 0), Row(5, 260, 16), Row(3, 256, 16), Row(1, 256, 16)),
    "not a whole part": step_of(Row(1, 300, 0), Row(1, 300, 15), Row(1, 257, 15)),
}


@both_kinds
@pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_a_row_is_the_same_whoever_begins_as_it_does(step: Step, level: Level, kind: KV) -> None:
    for threads in (1, 3):
        with using(level, threads) as library:
            assert_same_alone(library, step, Shape(3, 2, 64), kind)


@both_kinds
@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(
        st.builds(
            lambda tokens, more, alike: Row(tokens, tokens + more, alike),
            st.sampled_from([1, 1, 1, 2, 5, 40]),
            st.sampled_from([0, 20, 255, 256, 300, 511, 512, 600, 800]),
            st.sampled_from([0, 15, 16, 32, 33, 48]),
        ),
        min_size=2,
        max_size=8,
    ),
    shape=st.builds(Shape, st.integers(1, 8), st.integers(1, 3), st.sampled_from([2, 40, 64, 128, 256])),
    window=st.sampled_from([0, 0, 1, 300, 4000]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_any_rows(kind: KV, rows: list[Row], shape: Shape, window: int, threads: int, seed: int) -> None:
    for level in levels():
        with using(level, threads) as library:
            assert_same_alone(library, step_of(*rows, seed=seed), shape, kind, window, seed)
