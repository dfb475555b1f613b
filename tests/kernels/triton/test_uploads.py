"""A step uploads nothing from the host: a CUDA graph could not hold it."""

from pathlib import Path
from typing import NoReturn

import pytest
import torch

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
