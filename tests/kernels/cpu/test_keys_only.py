"""Native attention over keys that are the values, too, as latents are stored: right at every level of the processor,
and the same for a token however it is computed."""

import ctypes
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.cpu.native import Level
from kernels.cpu.native.abi import KV, Heads
from kernels.cpu.native.library import load
from kernels.layout import HeadShape, block_numbers, int8_layer_bytes
from kernels.ops import AttentionMetadata, RopeRows
from kernels.reference_int8 import from_int8, to_int8
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
    vector_levels,
)

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

both_kinds = pytest.mark.parametrize("int8", [False, True], ids=["bf16", "int8"])
SCALE = 192**-0.5
"""Of DeepSeek-V3's scores, whose heads had 192 dimensions."""


class Case(NamedTuple):
    """Queries [T, Hq, D], and keys [N, 16, 1, 1, D], NaN in slots of no row, or int8 [N, bytes]."""

    query: Tensor
    keys: Tensor


def case_of(metadata: AttentionMetadata, heads: int, dim: int, *, int8: bool, seed: int = 0) -> Case:
    keys = poisoned_kv(metadata, 1, dim, seed)[:, :, :1].contiguous()
    query = random(len(metadata.positions), heads, dim, seed=seed + 100)
    return Case(query, poisoned_int8(keys) if int8 else keys)


def expected(case: Case, metadata: AttentionMetadata, scale: float) -> Tensor:
    """The reference scales by 1/sqrt(D): the rest is in the query, which float32 holds."""
    dim = case.query.shape[2]
    stored = from_int8(case.keys, 1, dim, 1) if case.keys.dtype == torch.int8 else case.keys
    return reference.attend(case.query.float() * (scale * dim**0.5), torch.nan_to_num(stored).float(), metadata, None)


def native(library: ctypes.CDLL, case: Case, metadata: AttentionMetadata, scale: float = SCALE) -> Tensor:
    return attend(library, case.query, case.keys, metadata, None, scale=scale, keys_only=True)


def assert_close(actual: Tensor, wanted: Tensor) -> None:
    assert actual.isfinite().all()
    assert ((actual.float() - wanted).abs() <= wanted.abs() / 256 + 3e-5).all()


def test_the_reference_takes_keys_for_values() -> None:
    metadata = metadata_of([(1, 300), (40, 70)])
    query, keys = case_of(metadata, 6, 40, int8=False)
    keys = torch.nan_to_num(keys)
    both = torch.cat((keys, keys), dim=2)
    assert torch.equal(reference.attend(query, keys, metadata, None), reference.attend(query, both, metadata, None))


@both_kinds
@settings(deadline=None, max_examples=12)
@given(
    rows=st.lists(st.sampled_from([(1, 1), (1, 40), (3, 257), (1, 600), (20, 300), (70, 70)]), min_size=1, max_size=3),
    heads=st.sampled_from([1, 5, 20, 64]),
    dim=st.sampled_from([32, 50, 288, 514, 550, 576]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_any_step(int8: bool, rows: list[tuple[int, int]], heads: int, dim: int, threads: int, seed: int) -> None:
    metadata = metadata_of(rows, seed)
    case = case_of(metadata, heads, dim, int8=int8, seed=seed)
    wanted = expected(case, metadata, SCALE)
    for level in levels():
        with using(level, threads) as library:
            assert_close(native(library, case, metadata), wanted)


@both_kinds
@pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)
def test_a_token_is_the_same_however_it_is_computed(level: Level, int8: bool) -> None:
    """With the heads of GLM-4.7-Flash: in one chunk, in small ones, alone, in a batch, by one thread or three."""
    length = 600
    whole = metadata_of([(length, length)])
    case = case_of(whole, 20, 576, int8=int8, seed=9)
    with using(level) as library:
        together = native(library, case, whole)
        for tokens, end in [(1, 600), (1, 513), (1, 17), (1, 1), (3, 300), (16, 520), (257, 600)]:
            part = AttentionMetadata(whole.block_tables, (tokens,), (end,))
            alone = native(library, Case(case.query[end - tokens : end], case.keys), part)
            assert torch.equal(alone, together[end - tokens : end]), (tokens, end)
        for threads in (1, 3):
            library.tp_use_threads(threads)
            assert torch.equal(native(library, case, whole), together)


@pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)
def test_rows_with_a_common_prefix(level: Level) -> None:
    """Parts that they share are computed as one tile: each row's numbers are those that it has alone."""
    apart = metadata_of([(1, 540), (1, 600), (1, 530)])
    tables = apart.block_tables.clone()
    tables[:, :32] = tables[1, :32]
    metadata = AttentionMetadata(tables, apart.query_lens, apart.context_lens)
    case = case_of(metadata, 8, 576, int8=False)
    with using(level, 3) as library:
        together = native(library, case, metadata)
        for row in range(3):
            alone = AttentionMetadata(tables[row : row + 1], (1,), (int(metadata.context_lens[row]),))
            own = Case(case.query[row : row + 1], case.keys)
            assert torch.equal(native(library, own, alone), together[row : row + 1])


@pytest.mark.parametrize("level", vector_levels(), ids=lambda level: level.name)
@pytest.mark.parametrize(("dim", "half"), [(32, 4), (50, 5), (576, 32)])
def test_rotate_and_store(level: Level, dim: int, half: int) -> None:
    """Keys alone are stored, as they are left in qkv; the same numbers as the reference's."""
    query_heads = 5
    metadata = metadata_of([(3, 20), (17, 17)])
    tokens, angles = 20, random(100, half, seed=1).float()
    qkv = random(tokens, query_heads + 1, dim, seed=2)
    before = poisoned_kv(metadata, 1, dim)[:, :, :1].contiguous()
    rope = RopeRows(*(factors[metadata.positions][:, None] for factors in (angles.cos(), angles.sin())))
    stored = before.float()
    wanted = reference.rotate_and_store(qkv.float(), None, rope, stored, metadata.slot_mapping)
    for blocks in (before.clone(), poisoned_int8(before)):
        with using(level) as library:
            left = rotate(library, qkv, blocks, metadata, angles)
        assert_close(left[:, :-1], wanted)
        exact = before.clone()
        exact.flatten(0, 1)[metadata.slot_mapping] = left[:, -1:, None]
        kept = exact.view(torch.int16) if blocks.dtype == bf16 else poisoned_int8(exact)
        assert torch.equal(blocks.view(kept.dtype), kept), "what is left in qkv is stored, and nothing else is touched"
        assert_close(exact.flatten(0, 1)[metadata.slot_mapping], stored.flatten(0, 1)[metadata.slot_mapping])


def rotate(library: ctypes.CDLL, qkv: Tensor, blocks: Tensor, metadata: AttentionMetadata, angles: Tensor) -> Tensor:
    """tp_rotate_and_store of a copy of qkv [T, Hq + 1, D], which it returns."""
    left, rows = qkv.clone(), native_rows(metadata)
    cos, sin = angles.cos(), angles.sin()
    heads = Heads(query_heads=qkv.shape[1] - 1, kv_heads=1, head_dim=qkv.shape[2], keys_only=1)
    heads.kv = KV.INT8 if blocks.dtype == torch.int8 else KV.BF16
    heads.rotary_half, heads.cos, heads.sin = angles.shape[1], cos.data_ptr(), sin.data_ptr()
    library.tp_rotate_and_store(
        ctypes.byref(heads), ctypes.byref(rows.struct), left.data_ptr(), left.stride(0), blocks.data_ptr()
    )
    return left


def test_bytes_of_a_token() -> None:
    """The latent and the rotated dimensions times the width; in int8 the scale, too."""
    heads = HeadShape(1, 576, keys_only=True)
    assert 2 * block_numbers(heads) == 16 * 576 * 2
    assert int8_layer_bytes(heads) == 16 * (576 + 2)
    keys = random(3, 16, 1, 1, 576)
    assert to_int8(keys).shape == (3, int8_layer_bytes(heads))
    torch.testing.assert_close(from_int8(to_int8(keys), 1, 576, 1), keys.float(), atol=0.02, rtol=0)


def test_heads_that_it_cannot_do() -> None:
    library = load()
    assert library is not None
    rows = native_rows(metadata_of([(1, 1)]))
    for dim, supported in ((576, True), (577, False), (578, False)):
        heads = Heads(20, 1, dim, keys_only=1)
        assert (library.tp_attend_scratch_bytes(ctypes.byref(heads), ctypes.byref(rows.struct)) >= 0) == supported
