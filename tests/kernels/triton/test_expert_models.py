"""Mixtures of experts on a GPU equal the same models in plain torch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.models.transformer import Transformer
from kernels.reference_grouped import PackedGroups
from kernels.reference_ops import ReferenceOps
from kernels.reference_rounded import RoundedWeight, rounded_linear
from kernels.triton.mixture import StackedExperts
from kernels.triton.ops import TritonOps
from kernels.triton.rounded import RoundedLinear
from kernels.weights import ExpertWeights
from tests.engine.models.quantization.folders import CASES, write
from tests.engine.models.quantization.mxfp4_folders import write_folders
from tests.kernels.triton.interpreter import round_to_fp8_as_a_gpu
from tests.kernels.triton.model_steps import loaded, logits_of
from tests.support.kernel_tensors import DEVICE
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe", "gpt_oss", "glm4_moe", "minimax_m2"])
def test_logits_are_equal(family: TinyFamily, tmp_path: Path) -> None:
    """Dense layers among sparse ones, and shared MLPs; sinks, biases and a clamped activation; sigmoid routers with
    biases of the choice and groups. Tokens are counted as by the reference."""
    folder = make_checkpoint(tmp_path / family, family)
    model, reference = (
        loaded(folder, TritonOps(DEVICE, torch.float32)),
        loaded(folder, ReferenceOps(DEVICE, torch.float32)),
    )
    assert isinstance(stacked(model).down.weight, torch.Tensor)
    torch.testing.assert_close(logits_of(model), logits_of(reference), atol=1e-4, rtol=1e-4)
    assert model.expert_tokens.sum() > 0
    assert torch.equal(model.expert_tokens, reference.expert_tokens)


SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 128,
    "head_dim": 32,
    "num_hidden_layers": 2,
}
BY_NAME = {case.name: case for case in CASES}


def quantised(root: Path, name: str) -> Path:
    """A checkpoint of Qwen3-MoE: one dense layer and one with experts."""
    source = make_checkpoint(root / "plain", "qwen3_moe", **SHAPE)
    write(root / name, source, BY_NAME[name])
    return root / name


def test_integers_in_groups_are_not_expanded(tmp_path: Path) -> None:
    folder = quantised(tmp_path, "gptq-4-128-gptq_v2-asym")
    model = loaded(folder, TritonOps(DEVICE, torch.float32))
    assert isinstance(stacked(model).down.weight, PackedGroups)
    expected = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    torch.testing.assert_close(logits_of(model), expected, atol=1e-4, rtol=1e-4)


def test_mxfp4_is_not_expanded(tmp_path: Path) -> None:
    """gpt-oss as it is published, with biases next to numbers of 4 bits."""
    plain, packed = write_folders(tmp_path)
    model = loaded(packed, TritonOps(DEVICE, torch.float32))
    for linear in (stacked(model).gate_up, stacked(model).down):
        assert isinstance(linear.weight, PackedGroups)
        assert linear.weight.zero_points is None
        assert linear.bias is not None
    expected = logits_of(loaded(plain, ReferenceOps(DEVICE, torch.float32)))
    torch.testing.assert_close(logits_of(model), expected, atol=1e-4, rtol=1e-4)


def test_8_bit_floats_are_not_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits move, as activations are rounded, too; by what the reference of that rounding moves them."""
    round_to_fp8_as_a_gpu(monkeypatch)
    folder = quantised(tmp_path, "fp8-(128, 128)")
    model = loaded(folder, TritonOps(DEVICE, torch.float32))
    assert isinstance(stacked(model).gate_up.weight, RoundedWeight)
    exact = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    actual = logits_of(model)
    assert 1e-3 < float((actual - exact).norm() / exact.norm()) < 0.3
    monkeypatch.setattr(TritonOps, "mixture", ReferenceOps.mixture)
    monkeypatch.setattr(
        RoundedLinear, "_product", lambda self, x, dtype: rounded_linear(x, self.weight, self.bias, dtype)
    )
    assert float((logits_of(model) - actual).norm() / exact.norm()) < 0.01


def stacked(model: Transformer) -> StackedExperts:
    mlp = next(layer.mlp for layer in model._weights.layers if isinstance(layer.mlp, ExpertWeights))
    assert isinstance(mlp.experts, StackedExperts)
    return mlp.experts
