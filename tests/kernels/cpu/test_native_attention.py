"""Native paged attention: right at every level of the processor, and the same for a token however it is computed."""

import ctypes
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.cpu.native import Level
from kernels.cpu.native.abi import Heads
from kernels.cpu.native.library import load
from kernels.layout import int8_block_bytes
from kernels.ops import AttentionMetadata
from kernels.reference_int8 import from_int8
from tests.kernels.cpu.paged import (
    attend,
    bf16,
    levels,
    metadata_of,
    native_rows,
    poisoned_int8,
    poisoned_kv,
    random,
    using,
)

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)


def expected(query: Tensor, kv: Tensor, metadata: AttentionMetadata, window: int | None) -> Tensor:
    if kv.dtype == torch.int8:
        head_dim = query.shape[2]
        kv = from_int8(kv, kv.shape[1] // int8_block_bytes(1, head_dim), head_dim)
    # the reference multiplies what it hides by 0
    return reference.attend(query.float(), torch.nan_to_num(kv).float(), metadata, window)


def kept(kv: Tensor, int8: bool) -> Tensor:
    return poisoned_int8(kv) if int8 else kv


both_kinds = pytest.mark.parametrize("int8", [False, True], ids=["bf16", "int8"])


def assert_close(actual: Tensor, wanted: Tensor) -> None:
    """Half a unit in the last place of bf16, and what sums of float32 round off on the way."""
    assert actual.isfinite().all()
    assert ((actual.float() - wanted).abs() <= wanted.abs() / 256 + 2e-5).all()


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Rows of (query tokens, context tokens): decodes, drafts and chunks."""
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        context = draw(st.one_of(st.integers(1, 70), st.sampled_from([255, 256, 257, 511, 513, 1000])))
        tokens = draw(st.one_of(st.just(1), st.integers(1, 6), st.integers(1, 100)))
        rows.append((min(tokens, context), context))
    return rows


@both_kinds
@settings(deadline=None, max_examples=30)
@given(
    rows=steps(),
    group=st.integers(1, 8),
    kv_heads=st.integers(1, 2),
    head_dim=st.sampled_from([2, 8, 16, 40, 50, 64, 80, 96, 128, 256, 512]),
    window=st.sampled_from([None, None, 1, 5, 16, 40, 256, 300]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_any_step(
    int8: bool,
    rows: list[tuple[int, int]],
    group: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    threads: int,
    seed: int,
) -> None:
    metadata = metadata_of(rows, seed)
    kv = kept(poisoned_kv(metadata, kv_heads, head_dim, seed), int8)
    query = random(len(metadata.positions), group * kv_heads, head_dim, seed=seed + 100)
    wanted = expected(query, kv, metadata, window)
    for level in levels():
        with using(level, threads) as library:
            assert_close(attend(library, query, kv, metadata, window), wanted)


@both_kinds
@pytest.mark.parametrize("window", [None, 40])
def test_scores_with_a_scale_and_a_softcap(int8: bool, window: int | None) -> None:
    metadata = metadata_of([(1, 300), (5, 257), (70, 90)])
    kv = kept(poisoned_kv(metadata, 2, 48), int8)
    query = random(len(metadata.positions), 4, 48, seed=3)
    scale, cap = 0.3, 2.5
    stored = from_int8(kv, 2, 48) if int8 else kv
    # The reference scales by 1/sqrt(D): the rest is in the query, which float32 holds.
    scaled = query.float() * (scale * math.sqrt(48))
    wanted = reference.attend(scaled, torch.nan_to_num(stored).float(), metadata, window, cap)
    for level in levels():
        with using(level, 2) as library:
            assert_close(attend(library, query, kv, metadata, window, scale=scale, cap=cap), wanted)


@both_kinds
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("cap", [0.0, 2.5])
def test_sinks(int8: bool, window: int | None, cap: float) -> None:
    """Each head's own: of no weight, of about as much as keys, and of nearly all."""
    metadata = metadata_of([(1, 300), (5, 257), (70, 90), (1, 1)])
    kv = kept(poisoned_kv(metadata, 2, 48), int8)
    query = random(len(metadata.positions), 6, 48, seed=3)
    sinks = torch.tensor([-200.0, -1.0, 0.5, 3.0, 8.0, 200.0])
    stored = torch.nan_to_num(from_int8(kv, 2, 48) if int8 else kv).float()
    wanted = reference.attend(query.float(), stored, metadata, window, cap or None, sinks)
    assert (wanted[:, 5] == 0).all()
    torch.testing.assert_close(
        wanted[:, 0], reference.attend(query.float(), stored, metadata, window, cap or None)[:, 0]
    )
    for level in levels():
        with using(level, 2) as library:
            assert_close(attend(library, query, kv, metadata, window, cap=cap, sinks=sinks), wanted)


@both_kinds
@pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window"),
    [(3, 1, 64, None), (2, 2, 40, 1), (20, 2, 128, 300), (20, 2, 128, None), (80, 1, 16, 40), (80, 1, 16, 300)],
)
def test_a_token_is_the_same_however_it_is_computed(
    level: Level, heads: int, kv_heads: int, head_dim: int, window: int | None, int8: bool
) -> None:
    """In one chunk, in small ones, alone, in a batch, with drafts, by one thread or three: to the bit."""
    length = 600
    whole = metadata_of([(length, length)])
    kv, query = kept(poisoned_kv(whole, kv_heads, head_dim), int8), random(length, heads, head_dim, seed=9)
    with using(level) as library:
        together = attend(library, query, kv, whole, window)
        for chunk in (1, 3, 16, 33, 257):
            for end in range(length, 0, -chunk * (1 if chunk > 16 else 97)):
                tokens = min(chunk, end)
                part = AttentionMetadata(whole.block_tables, (tokens,), (end,))
                alone = attend(library, query[end - tokens : end], kv, part, window)
                assert torch.equal(alone, together[end - tokens : end]), (chunk, end)
        for threads in (1, 3):
            library.tp_use_threads(threads)
            assert torch.equal(attend(library, query, kv, whole, window), together)


@both_kinds
@pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)
def test_a_row_is_the_same_in_any_company(level: Level, int8: bool) -> None:
    """Rows that are cut into parts when they are alone, and not when they are many."""
    rows = [(1, 700), (4, 900), (1, 20)]
    crowd = metadata_of(rows + [(1, 300)] * 150)
    kv, query = kept(poisoned_kv(crowd, 2, 64), int8), random(len(crowd.positions), 6, 64, seed=4)
    with using(level) as library:
        together = attend(library, query, kv, crowd, None)
        first = 0
        for row, (tokens, context) in enumerate(rows):
            own = slice(first, first + tokens)
            metadata = AttentionMetadata(crowd.block_tables[row : row + 1], (tokens,), (context,))
            assert torch.equal(attend(library, query[own], kv, metadata, None), together[own])
            first += tokens


@both_kinds
@pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)
@pytest.mark.parametrize("of_keys", [True, False])
def test_what_is_not_a_number_reaches_only_those_who_see_it(level: Level, of_keys: bool, int8: bool) -> None:
    metadata = metadata_of([(100, 300), (2, 50)])
    kv, query = poisoned_kv(metadata, 1, 64), random(102, 4, 64, seed=1)
    spoilt = kv.clone()
    at = 250  # of the first row: its token 50
    spoilt[metadata.block_tables[0, at // 16], at % 16, 0 if of_keys else 1] = math.nan
    for window in (None, 30):
        with using(level) as library:
            sound, actual = (attend(library, query, kept(each, int8), metadata, window) for each in (kv, spoilt))
        seen = torch.zeros(102, dtype=torch.bool)
        seen[50 : 100 if window is None else 80] = True
        assert actual[seen].isnan().all()
        assert torch.equal(actual[~seen], sound[~seen])


@pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)
def test_large_and_equal_scores(level: Level) -> None:
    """Weights that vanish next to a weight of one, and weights that are all the same."""
    metadata = metadata_of([(1, 520)])
    kv, query = poisoned_kv(metadata, 1, 64), random(1, 1, 64, seed=1)
    with using(level) as library:
        assert_close(attend(library, query * 200, kv, metadata, None), expected(query * 200, kv, metadata, None))
        kv[:, :, 0] = 0
        values = kv.flatten(0, 1)[:, 1, 0][slots_of(metadata, 520)]
        assert_close(attend(library, query, kv, metadata, None)[0, 0], values.float().mean(0))


def slots_of(metadata: AttentionMetadata, context: int) -> Tensor:
    at = torch.arange(context)
    return metadata.block_tables[0, at // 16] * 16 + at % 16


@pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)
def test_steps_without_tokens(level: Level) -> None:
    kv = torch.zeros((1, 16, 2, 1, 16), dtype=bf16)
    none = AttentionMetadata(torch.zeros((0, 1), dtype=torch.int64), [], [])
    waiting = AttentionMetadata(torch.zeros((2, 1), dtype=torch.int64), [0, 0], [5, 0])
    with using(level) as library:
        for metadata in (none, waiting):
            assert attend(library, random(0, 2, 16), kv, metadata, None).shape == (0, 2, 16)


def test_heads_that_it_cannot_do() -> None:
    library = load()
    assert library is not None
    rows = native_rows(metadata_of([(1, 1)]))
    for heads in (Heads(4, 2, 63), Heads(4, 2, 578), Heads(5, 2, 64)):
        assert library.tp_attend_scratch_bytes(ctypes.byref(heads), ctypes.byref(rows.struct)) == -1
