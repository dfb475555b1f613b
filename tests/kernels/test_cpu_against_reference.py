"""Torch's ops on a CPU equal the reference: those of a forward pass, odd shapes, unowned blocks poisoned with NaN.

What goes around a forward pass is tested in `test_host_ops`, the native forward pass in `cpu/test_forward`.
"""

import math

import pytest
import torch

from kernels import reference
from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import CpuProfile, Products
from kernels.exchange import array_of
from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata, HeadNorms, RopeRows
from kernels.reference_ops import ReferenceOps
from kernels.weights import StoredWeight

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
DTYPES = [torch.float32, torch.bfloat16]


def cpu_ops(dtype: torch.dtype, *, products: Products = "onednn", pad: bool = False) -> CpuOps:
    return CpuOps(CpuProfile(dtype, threads=2, products=products, min_rows=4 if pad else 1, probe_us={}))


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.float(), expected.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 17, 130])
@pytest.mark.parametrize(("products", "pad"), [("onednn", False), ("onednn", True), ("plain", False)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(dtype: torch.dtype, rows: int, products: Products, pad: bool, bias: bool) -> None:
    weight = random(48, 40, dtype=dtype, seed=1) / 8
    offset = random(48, dtype=dtype, seed=2) if bias else None
    x = random(rows, 40, dtype=dtype)
    linear = cpu_ops(dtype, products=products, pad=pad).pack_linear(weight, offset)
    assert_close(linear(x), reference.linear(x, weight, offset), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_a_checkpoint(dtype: torch.dtype) -> None:
    """As arrays: matrices one below the other, gates above ups, a table and the head that is tied to it, vectors."""
    ops = cpu_ops(dtype)
    weights = [random(rows, 40, dtype=dtype, seed=rows) / 8 for rows in (48, 16, 16)]
    bias, x = random(80, dtype=dtype, seed=2), random(3, 40, dtype=dtype)
    stored = [StoredWeight.dense(array_of(weight)) for weight in weights]
    together = ops.pack_parts(stored, array_of(bias))
    assert (together.in_features, together.out_features) == (40, 80)
    assert_close(together(x), reference.linear(x, torch.cat(weights), bias), dtype)
    gate_up = ops.pack_gate_up(stored[1], stored[2], None)
    assert_close(gate_up(x), reference.linear(x, torch.cat(weights[1:]), None), dtype)
    embedding, token_ids = ops.pack_embedding(stored[0]), torch.tensor([0, 47, 5, 5])
    head, kept = ops.tied_head(embedding), weights[0].clone()
    assert torch.equal(embedding(token_ids), kept[token_ids])
    assert_close(head.wide(x), reference.linear(x, kept, None).float(), dtype)
    vector, kept_bias = ops.vector(array_of(bias)), bias.clone()
    before = together(x)
    for given in (*weights, bias):
        given.fill_(math.nan)
    assert torch.equal(together(x), before)
    assert torch.equal(embedding(token_ids), kept[token_ids]), "a copy: the file may go"
    assert torch.equal(vector, kept_bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 64), (7, 96), (5, 3, 16)])
def test_norms(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, residual = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1)
    weight = random(shape[-1], dtype=dtype, seed=2)
    ops = cpu_ops(dtype)
    assert_close(ops.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), dtype)
    expected = reference.add_rms_norm(x, residual.clone(), weight, 1e-5)
    for actual, wanted in zip(ops.add_rms_norm(x, residual.clone(), weight, 1e-5), expected, strict=True):
        assert_close(actual, wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotated", [64, 32])
@pytest.mark.parametrize("normed", [True, False])
def test_rotate_and_store(dtype: torch.dtype, rotated: int, normed: bool) -> None:
    qkv = random(9, 7, 64, dtype=dtype)  # three query heads, two of keys, two of values
    angles = random(9, 1, rotated // 2, dtype=torch.float32, seed=1)
    rope = RopeRows(angles.cos().to(dtype), angles.sin().to(dtype))
    weights = random(2, 64, dtype=dtype, seed=2)
    norms = HeadNorms(weights[0], weights[1], 1e-5) if normed else None
    alone = cpu_ops(dtype).rotate(qkv[:, :3], norms, rope)
    assert_close(alone, reference.rotate(qkv[:, :3], norms, rope), dtype)
    slots = torch.randperm(3 * BLOCK_TOKENS, generator=torch.Generator().manual_seed(3))[:9]
    mine, expected = (torch.full((3, BLOCK_TOKENS, 2, 2, 64), math.nan, dtype=dtype) for _ in range(2))
    wanted = reference.rotate_and_store(qkv.clone(), norms, rope, expected, slots)
    assert_close(cpu_ops(dtype).rotate_and_store(qkv, norms, rope, mine, slots), wanted, dtype)
    written = expected.flatten(0, 1)[slots]
    assert written.isfinite().all()
    assert_close(mine.flatten(0, 1)[slots], written, dtype)
    mine.flatten(0, 1)[slots] = math.nan
    assert mine.isnan().all(), "slots that belong to no row are unchanged"


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul(dtype: torch.dtype) -> None:
    gate_up = random(6, 80, dtype=dtype)
    assert_close(cpu_ops(dtype).silu_mul(gate_up), reference.silu_mul(gate_up), dtype)


def paged_step(
    rows: list[tuple[int, int]], kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[AttentionMetadata, torch.Tensor]:
    """Rows of (query tokens, context tokens) over scattered blocks; blocks that belong to no row are NaN."""
    blocks_of = [math.ceil(context / BLOCK_TOKENS) for _, context in rows]
    num_blocks = sum(blocks_of) + 3
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(3))
    tables = torch.zeros((len(rows), max(blocks_of)), dtype=torch.int64)
    taken = 0
    for row, count in enumerate(blocks_of):
        tables[row, :count] = order[taken : taken + count]
        taken += count
    kv = random(num_blocks, BLOCK_TOKENS, 2, kv_heads, head_dim, dtype=dtype)
    kv[order[taken:]] = math.nan
    return AttentionMetadata(tables, [tokens for tokens, _ in rows], [context for _, context in rows]), kv


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 5, 16, 40])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 16), (8, 2, 64), (6, 1, 80)])
@pytest.mark.parametrize(
    "rows",
    [
        [(1, 1)],
        [(1, 15), (1, 16), (1, 17)],
        [(1, 3), (1, 33), (1, 300)],
        [(7, 7)],
        [(5, 20), (16, 48)],
        [(1, 1), (1, 64), (2, 2), (17, 100)],
        [(3, 3), (3, 20), (3, 300), (16, 40), (16, 50), (17, 17)],
        [(20, 30), (1, 9), (4, 9), (1, 5)],  # in any order
    ],
    ids=str,
)
def test_attention(
    dtype: torch.dtype, window: int | None, heads: int, kv_heads: int, head_dim: int, rows: list[tuple[int, int]]
) -> None:
    metadata, kv = paged_step(rows, kv_heads, head_dim, dtype)
    query = random(len(metadata.positions), heads, head_dim, dtype=dtype, seed=5)
    ops = cpu_ops(dtype)
    actual = ops.attend(query, kv, ops.plan_attention(metadata), window)
    assert_close(actual, reference.attend(query, kv, metadata, window), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_kv_memory(dtype: torch.dtype) -> None:
    ops, plain = cpu_ops(dtype), ReferenceOps(torch.device("cpu"), dtype)
    mine, expected = (o.allocate_kv(2, 5, 2, 16) for o in (ops, plain))
    assert torch.equal(mine, expected)
    written = random(2, 5, BLOCK_TOKENS, 2, 2, 16, dtype=dtype)
    for o, kv in ((ops, mine), (plain, expected)):
        kv.copy_(written)
        o.copy_blocks(kv, torch.tensor([1, 2]), torch.tensor([0, 4]))
        o.clear_blocks(kv, torch.tensor([2]))
    assert torch.equal(mine, expected)
    assert torch.equal(mine[:, [0, 4]], written[:, [1, 2]])
    assert mine[:, 2].abs().sum() == 0
