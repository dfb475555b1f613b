"""Mixtures of experts on a GPU equal the same models in plain torch."""

from pathlib import Path

import pytest
import torch

from kernels.reference import ReferenceOps
from kernels.triton.mixture import StackedExperts
from kernels.triton.ops import TritonOps
from kernels.weights import ExpertWeights
from tests.kernels.triton.model_steps import loaded, logits_of
from tests.support.kernel_tensors import DEVICE
from tests.support.tiny_models import TinyFamily, make_checkpoint


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe"])
def test_logits_are_equal(family: TinyFamily, tmp_path: Path) -> None:
    """Dense layers among sparse ones, and a shared MLP."""
    folder = make_checkpoint(tmp_path / family, family)
    model = loaded(folder, TritonOps(DEVICE, torch.float32))
    mlp = model._weights.layers[0].mlp
    assert isinstance(mlp, ExpertWeights)
    assert isinstance(mlp.experts, StackedExperts)
    expected = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    torch.testing.assert_close(logits_of(model), expected, atol=1e-4, rtol=1e-4)
