"""Native norms, rotary positions and storing of KV: right at every level of the processor, for any shape."""

import ctypes
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.cpu.native import Level
from kernels.cpu.native.abi import KV, Heads
from kernels.cpu.native.library import load
from kernels.layout import int8_block_bytes
from kernels.ops import AttentionMetadata
from kernels.reference_int8 import from_int8
from tests.kernels.cpu.paged import (
    bf16,
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


def rms_norm(library: ctypes.CDLL, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x float32 [T, width], in a matrix wider than it needs."""
    rows, width = x.shape
    y = torch.full((rows, width + 3), 7.0, dtype=bf16)
    library.tp_rms_norm(x.data_ptr(), x.stride(0), rows, width, weight.data_ptr(), eps, y.data_ptr(), y.stride(0))
    assert (y[:, width:] == 7).all()
    return y[:, :width]


def assert_close(actual: Tensor, wanted: Tensor) -> None:
    """Half a unit in the last place of bf16, and what float32 rounds off on the way."""
    assert ((actual.double() - wanted).abs() <= wanted.abs() / 256 * 1.001 + 1e-6).all()


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps) * weight.double()


@pytest.mark.parametrize("level", vector_levels(), ids=lambda level: level.name)
@settings(deadline=None, max_examples=50)
@given(rows=st.integers(0, 50), width=st.integers(1, 700), seed=st.integers(0, 1000))
def test_rms_norm(level: Level, rows: int, width: int, seed: int) -> None:
    x, weight = random(rows, width + 5, seed=seed).float()[:, :width], random(width, seed=seed + 1).float()
    with using(level) as library:
        assert_close(rms_norm(library, x, weight, 1e-5), normed(x, weight, 1e-5))


@pytest.mark.parametrize("level", vector_levels(), ids=lambda level: level.name)
def test_a_norm_is_the_same_in_any_company(level: Level) -> None:
    x, weight = random(300, 576).float(), random(576, seed=1).float()
    with using(level, threads=3) as library:
        together = rms_norm(library, x, weight, 1e-6)
        for row in (0, 1, 150, 299):
            assert torch.equal(rms_norm(library, x[row : row + 1], weight, 1e-6), together[row : row + 1])


def rotate(
    library: ctypes.CDLL,
    qkv: Tensor,
    kv_layer: Tensor,
    metadata: AttentionMetadata,
    angles: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    value_norm: Tensor | None = None,
) -> Tensor:
    """tp_rotate_and_store of qkv [T, Hq + 2 Hkv, D]: what it leaves there. angles [positions, half]."""
    tokens, count, head_dim = qkv.shape
    int8 = kv_layer.dtype == torch.int8
    kv_heads = kv_layer.shape[1] // int8_block_bytes(1, head_dim) if int8 else kv_layer.shape[3]
    padded = torch.cat((qkv.flatten(1), torch.full((tokens, 3), 7.0, dtype=bf16)), dim=1)
    cos, sin, rows = angles.cos(), angles.sin(), native_rows(metadata)
    heads = Heads(
        query_heads=count - 2 * kv_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=1e-5,
        kv=KV.INT8 if int8 else KV.BF16,
        query_norm=None if norms is None else norms[0].data_ptr(),
        key_norm=None if norms is None else norms[1].data_ptr(),
        value_norm=None if value_norm is None else value_norm.data_ptr(),
        kv_block_bytes=kv_layer.stride(0) * kv_layer.element_size(),
        rotary_half=angles.shape[1],
        cos=cos.data_ptr(),
        sin=sin.data_ptr(),
    )
    library.tp_rotate_and_store(
        ctypes.byref(heads), ctypes.byref(rows.struct), padded.data_ptr(), padded.stride(0), kv_layer.data_ptr()
    )
    assert (padded[:, -3:] == 7).all()
    return padded[:, :-3].unflatten(1, (count, head_dim))


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=4),
    query_heads=st.integers(1, 6),
    kv_heads=st.integers(1, 3),
    dims=st.sampled_from(
        [(8, 4), (16, 8), (40, 20), (64, 32), (64, 16), (80, 40), (80, 10), (96, 48), (128, 64), (512, 32)]
    ),
    has_norms=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_rotate_and_store(
    rows: list[tuple[int, int]],
    query_heads: int,
    kv_heads: int,
    dims: tuple[int, int],
    has_norms: bool,
    threads: int,
    seed: int,
) -> None:
    (head_dim, half), tokens = dims, sum(count for count, _ in rows)
    metadata = metadata_of([(count, count + before) for count, before in rows], seed)
    qkv = random(tokens, query_heads + 2 * kv_heads, head_dim, seed=seed)
    angles = random(100, half, seed=seed + 1).float() * 3
    weights = random(2, head_dim, seed=seed + 2).float()
    norms = (weights[0], weights[1]) if has_norms else None
    before = poisoned_kv(metadata, kv_heads, head_dim, seed)
    turned = query_heads + kv_heads
    wanted = expected_heads(qkv[:, :turned], query_heads, angles[metadata.positions], norms)
    for level in vector_levels():
        kv, stored, blocks = before.clone(), before.clone(), poisoned_int8(before)
        with using(level, threads) as library:
            actual = rotate(library, qkv, kv, metadata, angles, norms)
            again = rotate(library, qkv, blocks, metadata, angles, norms)
        assert_near(actual[:, :turned], wanted)
        assert torch.equal(actual[:, turned:], qkv[:, turned:]), "values stay as they are"
        # Exactly what is left in qkv is stored, and nothing else is touched.
        stored.flatten(0, 1)[metadata.slot_mapping] = actual[:, query_heads:].unflatten(1, (2, kv_heads))
        assert torch.equal(kv.view(torch.int16), stored.view(torch.int16))
        assert torch.equal(again, actual), "what is left in qkv is the same, however KV is kept"
        assert torch.equal(blocks, poisoned_int8(stored))


@pytest.mark.parametrize("level", vector_levels(), ids=lambda level: level.name)
@pytest.mark.parametrize("head_dim", [16, 40, 512])
def test_normed_values_in_blocks_with_other_layers(level: Level, head_dim: int) -> None:
    """A block has other layers' numbers before and after those of this one, which stay as they are."""
    metadata = metadata_of([(3, 20), (17, 17)], 0)
    qkv = random(20, 4, head_dim, seed=1)
    angles, weight = random(100, head_dim // 2, seed=2).float(), random(head_dim, seed=3).float()
    dense = poisoned_kv(metadata, 1, head_dim, 0)
    numbers = dense[0].numel()
    around = torch.full((len(dense), numbers + 48), 7.0, dtype=bf16)
    mixed = around[:, 32 : 32 + numbers].view(dense.shape)
    mixed.copy_(dense)
    with using(level, 2) as library:
        plain = rotate(library, qkv, dense.clone(), metadata, angles, None)
        actual = rotate(library, qkv, dense, metadata, angles, None, weight)
        assert torch.equal(rotate(library, qkv, mixed, metadata, angles, None, weight), actual)
    assert torch.equal(actual[:, :3], plain[:, :3])
    assert_close(actual[:, 3:], normed(qkv[:, 3:], weight, 1e-5))
    assert torch.equal(mixed.contiguous().view(torch.int16), dense.view(torch.int16))
    assert (around[:, :32] == 7).all()
    assert (around[:, 32 + numbers :] == 7).all()


@pytest.mark.parametrize("level", vector_levels(), ids=lambda level: level.name)
@pytest.mark.parametrize("head_dim", [2, 40, 64])
def test_int8_of_any_numbers(level: Level, head_dim: int) -> None:
    """Ties, zeros, the smallest and the largest numbers, and what is not finite: as the reference says, to the bit."""
    ties = torch.arange(head_dim).float() + 0.5
    ties[0] = 127
    vectors = [ties, torch.zeros(head_dim), torch.full((head_dim,), 2.0**-133), torch.full((head_dim,), 3.38e38)]
    for fault in (math.inf, -math.inf, math.nan):
        vectors.append(random(head_dim).float().index_fill(0, torch.tensor([head_dim - 1]), fault))
    tokens = len(vectors)
    values = torch.stack(vectors).to(bf16)[:, None]
    qkv = torch.cat((random(tokens, 2, head_dim), values), dim=1)
    metadata = metadata_of([(tokens, tokens)])
    kv = poisoned_kv(metadata, 1, head_dim)
    blocks = poisoned_int8(kv)
    with using(level) as library:
        left = rotate(library, qkv, blocks, metadata, torch.zeros(tokens, 1), None)
    kv.flatten(0, 1)[metadata.slot_mapping] = left[:, 1:].unflatten(1, (2, 1))
    assert torch.equal(blocks, poisoned_int8(kv))
    kept = from_int8(blocks, 1, head_dim)[metadata.block_tables[0, 0], :tokens, 1, 0]
    assert torch.equal(kept[0], ties.round()), "to even"
    assert kept[1:4].isfinite().all()
    assert kept[4:].isnan().all()


def expected_heads(heads: Tensor, query_heads: int, angles: Tensor, norms: tuple[Tensor, Tensor] | None) -> Tensor:
    """Queries and keys [T, Hq + Hkv, D], normed and turned in float64."""
    wide, half = heads.double(), angles.shape[1]
    if norms is not None:
        queries, keys = wide[:, :query_heads], wide[:, query_heads:]
        wide = torch.cat((normed(queries, norms[0], 1e-5), normed(keys, norms[1], 1e-5)), dim=1)
    cos, sin = angles.cos().double()[:, None], angles.sin().double()[:, None]
    first, second = wide[..., :half], wide[..., half : 2 * half]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, wide[..., 2 * half :]), dim=-1)


def assert_near(actual: Tensor, wanted: Tensor) -> None:
    """As `assert_close`, where a difference of two numbers of some size may be nearly nothing."""
    assert ((actual.double() - wanted).abs() <= wanted.abs() / 256 * 1.001 + 1e-5).all()


@pytest.mark.parametrize("level", vector_levels(), ids=lambda level: level.name)
def test_a_token_is_the_same_in_any_company(level: Level) -> None:
    metadata = metadata_of([(40, 200), (1, 9), (1, 77)])
    qkv, angles = random(42, 9, 64), random(200, 32, seed=1).float()
    kv = poisoned_kv(metadata, 2, 64)
    with using(level, threads=3) as library:
        together = rotate(library, qkv, kv.clone(), metadata, angles, None)
        for first, row, context in ((0, 0, 161), (17, 0, 178), (39, 0, 200), (40, 1, 9), (41, 2, 77)):
            own = slice(first, first + 1)
            alone = AttentionMetadata(metadata.block_tables[row : row + 1], (1,), (context,))
            assert torch.equal(rotate(library, qkv[own], kv.clone(), alone, angles, None), together[own])


@pytest.mark.parametrize("level", vector_levels(), ids=lambda level: level.name)
def test_a_norm_of_what_is_not_a_number_is_none(level: Level) -> None:
    x, weight = random(3, 40).float(), random(40, seed=1).float()
    x[1, 39] = math.nan
    with using(level) as library:
        y = rms_norm(library, x, weight, 1e-5)
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()
