"""The head's product in the narrower dtype that holds it equals the one in float32, also in memory that is given."""

import numpy as np
import pytest
import torch

from kernels.integers import GroupedIntegers
from kernels.ops import Linear
from kernels.reference_grouped import packed_groups
from kernels.reference_ops import ReferenceLinear
from kernels.reference_rounded import RoundedWeight, round_tokens
from kernels.triton import few_rows
from kernels.triton.few_rows import PlainLinear
from kernels.triton.grouped import GroupedLinear
from kernels.triton.rounded import RoundedLinear
from tests.kernels.triton.interpreter import round_to_fp8_as_a_gpu
from tests.support.kernel_tensors import DEVICE, random

_OUT, _IN = 67, 256


def _grouped(bias: torch.Tensor | None) -> GroupedLinear:
    rng, groups = np.random.default_rng(0), (_OUT, _IN // 128)
    integers = GroupedIntegers(
        4,
        rng.integers(0, 256, (_OUT, _IN // 2), np.uint8),
        (rng.standard_normal(groups) / 16).astype(np.float32),
        rng.integers(0, 16, groups, np.uint8),
    )
    rows = torch.from_numpy(integers.blocks("u4_128").rows).to(DEVICE)
    return GroupedLinear(packed_groups("u4_128", rows), bias)


def _rounded(bias: torch.Tensor | None) -> RoundedLinear:
    codes, scales = round_tokens(random(_OUT, _IN, dtype=torch.float32, seed=3), torch.int8, grouped=False)
    return RoundedLinear(RoundedWeight(codes, scales.T.contiguous()), bias)


@pytest.fixture(autouse=True)
def gpu_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        round_to_fp8_as_a_gpu(monkeypatch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", ["reference", "plain", "few rows", "grouped", "rounded"])
@pytest.mark.parametrize("rows", [1, 20])
def test_logits_are_what_float32_holds(
    monkeypatch: pytest.MonkeyPatch, kind: str, dtype: torch.dtype, biased: bool, rows: int
) -> None:
    if kind == "few rows":
        monkeypatch.setattr(few_rows, "LEAST_FEW_ROWS_NUMBERS", 0)
    weight, bias = random(_OUT, _IN, dtype=dtype), random(_OUT, dtype=dtype, seed=1) if biased else None
    linear: Linear = {
        "reference": lambda: ReferenceLinear(weight, bias),
        "plain": lambda: PlainLinear(weight, bias),
        "few rows": lambda: PlainLinear(weight, bias),
        "grouped": lambda: _grouped(bias),
        "rounded": lambda: _rounded(bias),
    }[kind]()
    assert linear.logits_dtype == (torch.float32 if kind in ("grouped", "rounded") else dtype)
    x = random(rows, _IN, dtype=dtype, seed=2)
    wide, logits = linear.wide(x), linear.logits(x)
    assert logits.dtype == linear.logits_dtype
    assert torch.equal(logits.float(), wide)
    memory = torch.full((rows + 1, _OUT), 7.0, dtype=linear.logits_dtype, device=DEVICE)
    given = linear.logits(x, memory[:rows])
    assert given.data_ptr() == memory.data_ptr()
    assert torch.equal(memory[:rows].float(), wide)
    assert (memory[rows] == 7.0).all(), "rows past the last are left alone"
