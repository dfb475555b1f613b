"""A step uploads nothing from the host: a CUDA graph could not hold it."""

from pathlib import Path
from typing import NoReturn

import pytest
import torch

from engine.models.transformer import scaled
from kernels.triton.ops import TritonOps
from tests.kernels.triton.model_steps import NUM_BLOCKS, loaded, metadata
from tests.support.kernel_tensors import DEVICE
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint

FAMILIES: tuple[TinyFamily, ...] = ("gemma2", "gemma4_moe", "gemma4_shared", "granite", "gpt_oss", "deepseek_v3")


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_forward_pass_makes_no_tensor_from_the_host(
    family: TinyFamily, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(make_checkpoint(tmp_path / family, family), TritonOps(DEVICE, torch.float32))
    kv, plan = model.allocate_kv(NUM_BLOCKS), model.ops.plan_attention(metadata([(1, 3)]))
    ids = torch.tensor([5], device=DEVICE)

    def step() -> None:
        model.logits(model.forward(ids, plan, kv))

    step()  # what is made once may be made now

    def upload(*arguments: object, **settings: object) -> NoReturn:
        raise AssertionError("an upload within a step")

    for name in ("tensor", "as_tensor", "from_numpy"):
        monkeypatch.setattr(torch, name, upload)
    step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("factor", [0.1, 3.0, 53.66563145999496, 1 / 3, 1e-3])
def test_a_factor_gives_the_bits_of_a_tensor_of_the_dtype(factor: float, dtype: torch.dtype) -> None:
    """Of every number of 16 bits, and of as many of 32."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    x = x.view(dtype) if dtype.itemsize == 2 else (x.int() * 65_519).view(dtype)
    x = x.to(DEVICE)
    expected = x * torch.tensor(factor, dtype=dtype, device=DEVICE)
    assert torch.equal(scaled(x, factor).nan_to_num(7.0), expected.nan_to_num(7.0))
