"""Quantised checkpoints on a GPU: computed with in their own bytes, and equal to the same weights expanded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import Quantize
from engine.models.config import UnsupportedCheckpoint
from engine.models.expansion import weight_memory
from kernels.reference_ops import ReferenceOps
from kernels.reference_rounded import rounded_linear
from kernels.triton.grouped import GroupedLinear
from kernels.triton.ops import TritonOps
from kernels.triton.rounded import RoundedLinear
from kernels.weights import MlpWeights
from tests.engine.models.quantization.folders import CASES, Case, write
from tests.kernels.triton.interpreter import round_to_fp8_as_a_gpu
from tests.kernels.triton.model_steps import loaded, logits_of
from tests.support.kernel_tensors import DEVICE
from tests.support.tiny_models import make_checkpoint

SHAPE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_hidden_layers": 1}
BY_NAME = {case.name: case for case in CASES}
Made = Callable[[str], Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("quantized-on-gpu")
    source = make_checkpoint(root / "plain", "llama", **SHAPE)

    def make(name: str) -> Path:
        if not (root / name).exists():
            write(root / name, source, BY_NAME[name])
        return root / name

    return make


def down_of(folder: Path, ops: TritonOps) -> object:
    mlp = loaded(folder, ops)._weights.layers[0].mlp
    assert isinstance(mlp, MlpWeights)
    return mlp.down


@pytest.mark.parametrize(
    "name",
    ["gptq-4-128-gptq-asym", "gptq-8-64-gptq-sym", "awq-32", "pack-4-128-asym", "pack-8--1-sym", "int8-asym", "mxfp4"],
)
def test_weights_in_groups_are_not_expanded(name: str, made: Made) -> None:
    folder, ops = made(name), TritonOps(DEVICE, torch.float32)
    assert isinstance(down_of(folder, ops), GroupedLinear)
    memory = weight_memory(open_checkpoint(folder), ops.takes_blocks, 2)
    assert memory.expanded == 0
    assert memory.spared > 0
    expected = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    torch.testing.assert_close(logits_of(loaded(folder, ops)), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["fp8-(128, 128)", "fp8-None", "float8-channel", "int8-sym"])
def test_weights_of_8_bits_are_not_expanded(name: str, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits move, as activations are rounded, too; by what the reference of that rounding moves them."""
    round_to_fp8_as_a_gpu(monkeypatch)
    folder, ops = made(name), TritonOps(DEVICE, torch.float32)
    assert isinstance(down_of(folder, ops), RoundedLinear)
    memory = weight_memory(open_checkpoint(folder), ops.takes_blocks, 2)
    assert memory.expanded == 0
    assert memory.spared > 0
    exact = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    actual = logits_of(loaded(folder, ops))
    assert 1e-3 < float((actual - exact).norm() / exact.norm()) < 0.1
    monkeypatch.setattr(RoundedLinear, "_product", by_the_reference)
    torch.testing.assert_close(actual, logits_of(loaded(folder, ops)), atol=0.02, rtol=0.02)


def by_the_reference(linear: RoundedLinear, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return rounded_linear(x, linear.weight, linear.bias, dtype)


def test_activation_order_is_expanded(made: Made) -> None:
    """A kernel would have to reorder its inputs."""
    case = next(case for case in CASES if case.name.endswith("-desc"))
    folder, ops = made(case.name), TritonOps(DEVICE, torch.float32)
    assert not isinstance(down_of(folder, ops), GroupedLinear)
    assert weight_memory(open_checkpoint(folder), ops.takes_blocks, 2).kept == 0
    expected = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    torch.testing.assert_close(logits_of(loaded(folder, ops)), expected, atol=1e-4, rtol=1e-4)


def test_parts_of_a_product_in_different_formats(made: Made, tmp_path: Path) -> None:
    """Plain queries next to quantised keys and values: their one product is expanded, the others are not."""
    plain = {"plain": ("q_proj", "o_proj")}
    case = Case(**{**_fields(BY_NAME["awq-32"]), **plain})
    folder = tmp_path / "mixed"
    write(folder, made("awq-32").parent / "plain", case)
    ops = TritonOps(DEVICE, torch.float32)
    model = loaded(folder, ops)
    assert not isinstance(model._weights.layers[0].qkv, GroupedLinear)
    assert isinstance(down_of(folder, ops), GroupedLinear)
    expected = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    torch.testing.assert_close(logits_of(model), expected, atol=1e-4, rtol=1e-4)


def _fields(case: Case) -> dict[str, Any]:
    return {name: getattr(case, name) for name in ("name", "config", "quantize", "block_format", "head", "extra")}


@pytest.mark.parametrize(
    ("quantize", "kind", "most_error"),
    [("int8", GroupedLinear, 0.03), ("int4", GroupedLinear, 0.25), ("fp8", RoundedLinear, 0.1)],
)
def test_plain_weights_are_rounded_on_loading(
    quantize: Quantize, kind: type, most_error: float, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All products but the embedding's table; the head to integers of 8 bits in every format."""
    round_to_fp8_as_a_gpu(monkeypatch)
    folder = made("awq-32").parent / "plain"
    model = loaded(folder, TritonOps(DEVICE, torch.float32), quantize)
    layer, head = model._weights.layers[0], model._weights.head
    assert isinstance(layer.mlp, MlpWeights)
    products = (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down)
    assert [type(product) for product in products] == [kind] * 4
    assert isinstance(head, GroupedLinear)
    assert head.weight.bits == 8
    exact = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    assert 1e-4 < float((logits_of(model) - exact).norm() / exact.norm()) < most_error


def test_a_width_that_a_format_does_not_divide_is_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "narrow", "llama", hidden_size=64, num_hidden_layers=1)
    with pytest.raises(UnsupportedCheckpoint, match="quantize fp8 does not divide this model's matrices of 64 inputs"):
        loaded(folder, TritonOps(DEVICE, torch.float32), "fp8")


def test_8_bit_floats_need_a_gpu(made: Made) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="quantize fp8 needs a GPU; here is reference in float32"):
        loaded(made("awq-32").parent / "plain", ReferenceOps(DEVICE, torch.float32), "fp8")
