"""Norm, rotation and storing of heads equal the reference; what belongs to no token of the step stays as it was."""

import math
from dataclasses import dataclass

import pytest
import torch

from kernels import reference
from kernels.layout import BLOCK_TOKENS
from kernels.ops import HeadNorms, RopeRows
from kernels.triton.rotary import rotate, rotate_and_store
from kernels.weights import KVScales
from tests.kernels.triton.interpreter import round_to_fp8_as_a_gpu
from tests.support.kernel_tensors import DEVICE, DTYPES, assert_close, random

NUM_BLOCKS = 3


@dataclass(frozen=True)
class Case:
    """query_heads, kv_heads, head_dim, rotated dimensions, whether heads are normed, and values, too."""

    queries: int
    kv_heads: int
    head_dim: int
    rotated: int
    normed: bool = False
    value_normed: bool = False


CASES = [
    Case(8, 2, 64, 64),
    Case(3, 1, 80, 80, normed=True),
    Case(4, 4, 96, 96),
    Case(14, 2, 128, 128, normed=True),  # 18 heads: more than one program's
    Case(32, 8, 128, 64),
    Case(2, 1, 256, 256),
    Case(2, 1, 256, 64, normed=True),
    Case(6, 2, 80, 32, normed=True),
    Case(9, 3, 64, 16),
    Case(1, 1, 8, 8, normed=True),
    Case(4, 2, 256, 256, normed=True, value_normed=True),
    Case(8, 1, 512, 512, normed=True, value_normed=True),
    Case(14, 2, 80, 32, normed=True, value_normed=True),
]


def inputs(case: Case, tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, HeadNorms | None, RopeRows]:
    qkv = random(tokens, case.queries + 2 * case.kv_heads, case.head_dim, dtype=dtype)
    angles = random(9, case.rotated // 2, dtype=torch.float32, seed=1) * 3
    query, key, value = random(3, case.head_dim, dtype=dtype, seed=2)
    norms = HeadNorms(query, key, 1e-5, value=value if case.value_normed else None) if case.normed else None
    positions = torch.arange(tokens, device=DEVICE) * 5 % 9
    return qkv, norms, RopeRows(angles.cos().to(dtype), angles.sin().to(dtype), positions)


def poisoned(case: Case, dtype: torch.dtype) -> torch.Tensor:
    shape = (NUM_BLOCKS, BLOCK_TOKENS, 2, case.kv_heads, case.head_dim)
    return torch.full(shape, math.nan, device=DEVICE).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rotate_and_store(case: Case, dtype: torch.dtype) -> None:
    qkv, norms, rope = inputs(case, 3, dtype)
    slots = torch.tensor([40, 0, 15], device=DEVICE)
    stored, expected_stored = poisoned(case, dtype), poisoned(case, dtype)
    expected = reference.rotate_and_store(qkv.clone(), norms, rope, expected_stored, slots)
    assert_close(rotate_and_store(qkv, norms, rope, stored, slots), expected)
    written = expected_stored.flatten(0, 1)[slots]
    assert written.isfinite().all()
    assert_close(stored.flatten(0, 1)[slots], written)
    if not case.value_normed:
        assert torch.equal(stored.flatten(0, 1)[slots][:, 1], qkv[:, -case.kv_heads :]), "values are stored as they are"
    of_tokens = rotate_and_store(qkv, norms, rope.of_tokens(), poisoned(case, dtype), slots)
    assert torch.equal(rotate_and_store(qkv, norms, rope, stored, slots), of_tokens), "the bits of gathered factors"
    stored.flatten(0, 1)[slots] = math.nan
    assert stored.isnan().all(), "slots that belong to no row are unchanged"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[7], CASES[-2], Case(2, 1, 64, 0, normed=True)], ids=str)
def test_rotate(case: Case, dtype: torch.dtype) -> None:
    """Queries alone have the bits that they have with keys and values."""
    qkv, norms, rope = inputs(case, 3, dtype)
    query = qkv[:, : case.queries].contiguous()
    before, rotated = query.clone(), rotate(query, norms, rope)
    assert_close(rotated, reference.rotate(query, norms, rope))
    assert torch.equal(query, before)
    slots = torch.tensor([40, 0, 15], device=DEVICE)
    assert torch.equal(rotated, rotate_and_store(qkv, norms, rope, poisoned(case, dtype), slots))


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_that_are_values_before_their_norm(dtype: torch.dtype) -> None:
    """Of a layer without values of its own, keys are passed twice."""
    case = Case(4, 2, 64, 64, normed=True, value_normed=True)
    qkv, norms, rope = inputs(case, 3, dtype)
    qkv = torch.cat((qkv[:, :-2], qkv[:, -4:-2]), dim=1)
    slots = torch.tensor([40, 0, 15], device=DEVICE)
    stored, expected = poisoned(case, dtype), poisoned(case, dtype)
    reference.rotate_and_store(qkv.clone(), norms, rope, expected, slots)
    rotate_and_store(qkv, norms, rope, stored, slots)
    assert_close(stored.flatten(0, 1)[slots], expected.flatten(0, 1)[slots])


def test_a_negative_slot_is_stored_nowhere() -> None:
    case = CASES[0]
    qkv, norms, rope = inputs(case, 3, torch.float32)
    slots = torch.tensor([-1, 17, -1], device=DEVICE)
    stored = poisoned(case, torch.float32)
    query = rotate_and_store(qkv, norms, rope, stored, slots)
    assert query.isfinite().all()
    finite = stored.flatten(0, 1).isfinite()
    assert finite[17].all()
    assert finite.sum() == finite[17].numel()


def test_blocks_of_a_layer_may_lie_apart() -> None:
    """A pool laid out by blocks: between two blocks of a layer lie those of other layers."""
    case = CASES[0]
    qkv, norms, rope = inputs(case, 2, torch.float32)
    slots = torch.tensor([33, 2], device=DEVICE)
    together = poisoned(case, torch.float32)
    rotate_and_store(qkv, norms, rope, together, slots)
    pool = torch.stack((poisoned(case, torch.float32),) * 2, dim=1)
    rotate_and_store(qkv, norms, rope, pool[:, 1], slots)
    assert torch.equal(pool[:, 1].nan_to_num(7.0), together.nan_to_num(7.0))
    assert pool[:, 0].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_layer_of_a_pool_of_mixed_heads(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values are stored where the layer is in each block, and nowhere else."""
    round_to_fp8_as_a_gpu(monkeypatch)
    case = Case(4, 2, 64, 64, normed=True, value_normed=True)
    scales = KVScales(key=0.25, value=0.5) if dtype == torch.float8_e4m3fn else None
    qkv, norms, rope = inputs(case, 3, torch.bfloat16)
    slots = torch.tensor([40, -1, 15], device=DEVICE)
    together = poisoned(case, dtype)
    expected = rotate_and_store(qkv, norms, rope, together, slots, scales)
    start, numbers = BLOCK_TOKENS * 2 * 48, together[0].numel()
    pool = torch.full((1, NUM_BLOCKS, start + numbers + BLOCK_TOKENS * 2 * 16), math.nan, device=DEVICE).to(dtype)
    layer = pool[0, :, start : start + numbers].view(together.shape)
    assert torch.equal(rotate_and_store(qkv, norms, rope, layer, slots, scales), expected)
    assert torch.equal(layer.view(torch.uint8), together.view(torch.uint8))
    layer.fill_(math.nan)
    assert pool.float().isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[6]], ids=str)
def test_kv_in_fp8(case: Case, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored numbers are the reference's, or next to them where a rounding before decides. The reference rounds the
    products of a rotation, which may cancel."""
    share, near_zero = (0.03, 2.0**-6) if dtype == torch.bfloat16 else (0.01, 2.0**-9)
    round_to_fp8_as_a_gpu(monkeypatch)
    scales = KVScales(key=0.25, value=0.5)
    qkv, norms, rope = inputs(case, 3, dtype)
    slots = torch.tensor([40, 0, 15], device=DEVICE)
    stored, expected_stored = (poisoned(case, torch.float8_e4m3fn) for _ in range(2))
    expected = reference.rotate_and_store(qkv.clone(), norms, rope, expected_stored, slots, scales)
    assert_close(rotate_and_store(qkv, norms, rope, stored, slots, scales), expected)
    actual, written = (kv.flatten(0, 1)[slots].float() for kv in (stored, expected_stored))
    assert written.isfinite().all()
    torch.testing.assert_close(actual, written, rtol=2.0**-3, atol=near_zero)
    assert (actual != written).float().mean() < share
    assert torch.equal(actual[:, 1], written[:, 1]), "nothing was rounded before a value"
    untouched = torch.ones(NUM_BLOCKS * BLOCK_TOKENS, dtype=torch.bool, device=DEVICE)
    untouched[slots] = False
    assert stored.float().flatten(0, 1)[untouched].isnan().all()


def test_fp8_saturates_and_keeps_nans(monkeypatch: pytest.MonkeyPatch) -> None:
    """e4m3 ends at 448: what is larger becomes that, of its sign, and not the NaN that follows it."""
    round_to_fp8_as_a_gpu(monkeypatch)
    case = Case(1, 1, 8, 8)
    qkv = torch.zeros(1, 3, 8, device=DEVICE)
    values = [1e6, -1e6, 465.0 * 2, -465.0 * 2, 449.0 * 2, -447.0 * 2, math.nan, 2.0**-8]
    qkv[0, 2] = torch.tensor(values)
    rope = RopeRows(torch.ones(1, 1, 4, device=DEVICE), torch.zeros(1, 1, 4, device=DEVICE))
    stored = poisoned(case, torch.float8_e4m3fn)
    rotate_and_store(qkv, None, rope, stored, torch.tensor([5], device=DEVICE), KVScales(key=1.0, value=2.0))
    kept = stored[0, 5, 1, 0].float()
    expected = torch.tensor([448.0, -448.0, 448.0, -448.0, 448.0, -448.0, math.nan, 2.0**-9], device=DEVICE)
    assert torch.equal(kept.nan_to_num(7.0), expected.nan_to_num(7.0))


def test_no_tokens() -> None:
    qkv, norms, rope = inputs(CASES[0], 0, torch.float16)
    stored = poisoned(CASES[0], torch.float16)
    slots = torch.empty(0, dtype=torch.int64, device=DEVICE)
    assert rotate_and_store(qkv, norms, rope, stored, slots).shape == (0, 8, 64)
    assert stored.isnan().all()
