"""The CPU backend equals the reference: every op, odd shapes, blocks of nobody poisoned with NaN."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.cpu import native
from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import CpuProfile, Products
from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata, HeadNorms, LogitEdits, RopeRows, SamplingColumns
from kernels.reference import ReferenceOps
from kernels.reference_int8 import from_int8, scales_of, to_int8

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
@pytest.mark.parametrize(
    ("products", "pad"), [("native", False), ("onednn", False), ("onednn", True), ("plain", False)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_linear(dtype: torch.dtype, rows: int, products: Products, pad: bool, bias: bool) -> None:
    weight = random(48, 40, dtype=dtype, seed=1) / 8
    offset = random(48, dtype=dtype, seed=2) if bias else None
    x = random(rows, 40, dtype=dtype)
    linear = cpu_ops(dtype, products=products, pad=pad).pack_linear(weight, offset)
    assert_close(linear(x), reference.linear(x, weight, offset), dtype)


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
    slots = torch.randperm(3 * BLOCK_TOKENS, generator=torch.Generator().manual_seed(3))[:9]
    mine, expected = (torch.full((3, BLOCK_TOKENS, 2, 2, 64), math.nan, dtype=dtype) for _ in range(2))
    wanted = reference.rotate_and_store(qkv.clone(), norms, rope, expected, slots)
    assert_close(cpu_ops(dtype).rotate_and_store(qkv, norms, rope, mine, slots), wanted, dtype)
    written = expected.flatten(0, 1)[slots]
    assert written.isfinite().all()
    assert_close(mine.flatten(0, 1)[slots], written, dtype)
    mine.flatten(0, 1)[slots] = math.nan
    assert mine.isnan().all(), "slots of nobody stay as they were"


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul(dtype: torch.dtype) -> None:
    gate_up = random(6, 80, dtype=dtype)
    assert_close(cpu_ops(dtype).silu_mul(gate_up), reference.silu_mul(gate_up), dtype)


def paged_step(
    rows: list[tuple[int, int]], kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[AttentionMetadata, torch.Tensor]:
    """Rows of (query tokens, context tokens) over scattered blocks; blocks of nobody are NaN."""
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


def test_kv_memory_in_int8() -> None:
    """A byte a number and two a scale; scales are copied and cleared with their numbers."""
    if native.level() is None:
        pytest.skip("the native library is not built")
    profile = CpuProfile(torch.bfloat16, threads=1, products="native", min_rows=1, probe_us={})
    ops, kv_heads, head_dim = CpuOps(profile, int8_kv=True), 3, 64
    kv = ops.allocate_kv(2, 5, kv_heads, head_dim)
    assert kv.nbytes * 128 == CpuOps(profile).allocate_kv(2, 5, kv_heads, head_dim).nbytes * 66
    numbers = random(2, 5, BLOCK_TOKENS, 2, kv_heads, head_dim, dtype=torch.bfloat16)
    kv.copy_(to_int8(numbers))
    kept = from_int8(kv, kv_heads, head_dim)
    assert ((kept - numbers.float()).abs() <= scales_of(numbers)[..., None] / 2).all()
    ops.copy_blocks(kv, torch.tensor([1, 2]), torch.tensor([0, 4]))
    ops.clear_blocks(kv, torch.tensor([2]))
    assert torch.equal(from_int8(kv, kv_heads, head_dim)[:, [0, 4, 1, 3]], kept[:, [1, 2, 1, 3]])
    assert not kv[:, 2].any()


VOCAB = 3000


def columns(rows: int, **changes: list[float] | list[int] | list[list[int]]) -> SamplingColumns:
    base = {
        "inverse_temperature": torch.ones(rows),
        "noise_scale": torch.ones(rows),
        "top_k": torch.full((rows,), VOCAB),
        "top_p": torch.ones(rows),
        "min_p": torch.zeros(rows),
        "keys": torch.tensor([[row * 7919 + 1, row * 104729 + 5] for row in range(rows)]),
    }
    return SamplingColumns(**(base | {name: torch.tensor(values) for name, values in changes.items()}))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
    top_k=st.sampled_from([1, 2, 50, 1500, VOCAB]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
)
def test_sampled_tokens(seed: int, scale: float, top_k: int, top_p: float, min_p: float, temperature: float) -> None:
    logits = random(4, VOCAB, dtype=torch.float32, seed=seed) * scale
    chosen = columns(
        4,
        inverse_temperature=[1 / temperature, 1 / temperature, 1.0, 1.0],
        noise_scale=[1.0, 1.0, 0.0, 1.0],
        top_k=[top_k, VOCAB, VOCAB, VOCAB],
        top_p=[top_p, 1.0, 1.0, top_p],
        min_p=[min_p, 0.0, 0.0, 0.0],
    )
    expected = reference.sample(logits, chosen)
    assert torch.equal(cpu_ops(torch.float32).sample(logits.clone(), chosen), expected)
    some = torch.arange(seed % 3, VOCAB, 3)
    among = reference.sample_among(logits[:, some], some, chosen)
    assert torch.equal(cpu_ops(torch.float32).sample_among(logits[:, some].clone(), some, chosen), among)


def test_sampling_among_tokens_is_sampling_where_all_others_are_impossible() -> None:
    logits = random(64, VOCAB, dtype=torch.float32, seed=3)
    some = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))[:300].sort().values
    chosen = columns(64, keys=[[key, key * key] for key in range(64)])
    alone = torch.full_like(logits, -math.inf)
    alone[:, some] = logits[:, some]
    expected = reference.sample(alone, chosen)
    assert torch.equal(reference.sample_among(logits[:, some], some, chosen), expected)
    assert len(set(expected.tolist())) > 20


def test_equal_logits_are_kept_together() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, :3] = 5.0
    draws = {
        int(cpu_ops(torch.float32).sample(logits.clone(), columns(1, top_k=[2], keys=[[key, key]]))[0])
        for key in range(200)
    }
    assert draws == {0, 1, 2}


def test_unluckiest_noise_does_not_lose_the_only_candidate() -> None:
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, 17] = 0.0
    assert int(cpu_ops(torch.float32).sample(logits, columns(1))[0]) == 17


@pytest.mark.parametrize("sample", [reference.sample, cpu_ops(torch.float32).sample], ids=["reference", "cpu"])
def test_draws_follow_the_softmax(sample) -> None:  # type: ignore[no-untyped-def]
    """Total variation to softmax(logits / T) stays within what this many draws allow."""
    draws, vocab, temperature = 8000, 12, 0.7
    logits = random(1, vocab, dtype=torch.float32, seed=9)
    chosen = SamplingColumns(
        inverse_temperature=torch.full((draws,), 1 / temperature),
        noise_scale=torch.ones(draws),
        top_k=torch.full((draws,), vocab),
        top_p=torch.ones(draws),
        min_p=torch.zeros(draws),
        keys=torch.randint(0, 2**32, (draws, 2), generator=torch.Generator().manual_seed(4)),
    )
    tokens = sample(logits.repeat(draws, 1), chosen)
    observed = torch.bincount(tokens, minlength=vocab) / draws
    expected = (logits[0] / temperature).softmax(dim=-1)
    assert float((observed - expected).abs().sum()) / 2 < 2.5 * math.sqrt(vocab / draws) / 2


def test_edits() -> None:
    logits = random(2, 6, dtype=torch.float32)
    edits = LogitEdits(
        torch.tensor([0, 0]),
        torch.tensor([1, 2]),
        torch.tensor([2.0, 2.0]),
        torch.tensor([0, 0, 1]),
        torch.tensor([1, 1, 5]),
        torch.tensor([0.5, 0.25, -math.inf]),
    )
    expected = logits.clone()
    for token in (1, 2):
        value = expected[0, token]
        expected[0, token] = value / 2 if value > 0 else value * 2
    expected[0, 1] += 0.75
    expected[1, 5] = -math.inf
    cpu_ops(torch.float32).edit_logits(logits, edits)
    torch.testing.assert_close(logits, expected)


def test_finite_rows() -> None:
    logits = torch.zeros(4, 3)
    logits[1, 2], logits[2, 0], logits[3, 1] = math.nan, math.inf, -math.inf
    assert cpu_ops(torch.float32).finite_rows(logits).tolist() == [True, False, False, True]


@pytest.mark.parametrize("vocab_size", [31, 32, 100, 4097])
def test_masked_logits(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    words = torch.randint(
        -(2**31), 2**31, (3, math.ceil(vocab_size / 32)), generator=generator, dtype=torch.int64
    ).int()
    logits = random(3, vocab_size, dtype=torch.float32)
    logits[1, 5], expected = torch.nan, logits.clone()
    expected[1, 5] = torch.nan
    reference.mask_logits(expected, words)
    cpu_ops(torch.float32).mask_logits(logits, words)
    assert 0 < logits.isneginf().sum() < logits.numel()
    assert torch.equal(logits.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
