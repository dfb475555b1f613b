"""Checkpoints in int8 whose inputs are int8, too, on a CPU: rounded as the reference defines, and a token's numbers
depend on its sequence alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.loader import load_model
from engine.models.native_model import NativeModel
from engine.models.transformer import Transformer
from kernels.arrays import Array
from kernels.cpu.native import NativeLinear
from kernels.cpu.native.abi import Format
from kernels.cpu.native_ops import NativeOps, computes_natively
from kernels.exchange import array_of, tensor_of
from kernels.host import StepRows
from kernels.ops import Linear
from kernels.reference_grouped import packed_groups
from kernels.reference_ops import ReferenceOps
from kernels.reference_rounded import RoundedWeight, rounded_linear, weight_of_integers
from kernels.weights import DENSE, MlpWeights, StoredWeight
from tests.engine.models.quantization.folders import CASES, write
from tests.support.host_logits import TOKENS, Expanded, logits_of
from tests.support.tiny_models import TinyFolder

if not computes_natively():
    pytest.skip("products are not native here", allow_module_level=True)

SHAPE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64}
CASES_IN_INT8 = [case for case in CASES if case.name.startswith("int8")]
ROUNDED = [case.name for case in CASES_IN_INT8 if case.rounds]
NOT_ROUNDED = [case.name for case in CASES_IN_INT8 if not case.rounds]
CPU = torch.device("cpu")
Made = Callable[[str], Path]


@pytest.fixture(scope="module")
def made(tiny_folder: TinyFolder, tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("rounded")

    def make(name: str) -> Path:
        if not (root / name).exists():
            case = next(case for case in CASES_IN_INT8 if case.name == name)
            write(root / name, tiny_folder("llama", **SHAPE), case)
        return root / name

    return make


class RoundedProduct:
    """Parts with rounded inputs, by the reference."""

    def __init__(self, parts: Sequence[tuple[RoundedWeight, float | None]]) -> None:
        self._parts = parts
        self.out_features = sum(weight.out_features for weight, _ in parts)
        self.in_features = parts[0][0].in_features

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([rounded_linear(x, weight, None, x.dtype, scale) for weight, scale in self._parts], dim=1)

    def wide(self, x: Tensor) -> Tensor:
        return self(x).float()


class RoundingReference(ReferenceOps):
    """The reference, which takes int8 weights, too."""

    def takes_blocks(self, format: str, in_features: int) -> bool:
        return format.startswith("u8_")

    def pack_parts(self, parts: Sequence[StoredWeight], bias: Array | None) -> Linear:
        if parts[0].format == DENSE:
            return super().pack_parts(parts, bias)
        assert bias is None
        assert all(part.rounded_inputs for part in parts)
        packed = []
        for part in parts:
            weight = weight_of_integers(packed_groups(part.format, tensor_of(part.rows)))
            assert weight is not None
            packed.append((weight, part.input_scale))
        return RoundedProduct(packed)


def native_model(folder: Path) -> NativeModel:
    model = load_model(open_checkpoint(folder), NativeOps(2), 64)
    assert isinstance(model, NativeModel)
    return model


def formats_of(model: NativeModel) -> set[int]:
    """Of the products of all layers."""
    products: list[NativeLinear] = []
    for layer in model._weights.layers:
        assert isinstance(layer.mlp, MlpWeights)
        assert isinstance(layer.qkv, NativeLinear)
        products += [layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down]
    return {part.format for product in products for part in product.struct.part[: product.struct.count]}


@pytest.mark.parametrize("name", ROUNDED)
def test_products_are_those_of_the_reference(name: str, made: Made) -> None:
    model = native_model(made(name))
    reference = load_model(open_checkpoint(made(name)), RoundingReference(CPU, torch.float32), 64)
    assert isinstance(reference, Transformer)
    for own, its in zip(model._weights.layers, reference._weights.layers, strict=True):
        assert isinstance(own.mlp, MlpWeights)
        assert isinstance(its.mlp, MlpWeights)
        pairs = ((own.qkv, its.qkv), (own.output, its.output), (own.mlp.down, its.mlp.down))
        for product, definition in pairs:
            assert isinstance(product, NativeLinear)
            assert isinstance(definition, RoundedProduct)
            x = torch.randn(5, product.in_features, generator=torch.Generator().manual_seed(1)).bfloat16()
            actual = torch.from_numpy(product.wide(array_of(x)))
            torch.testing.assert_close(actual, definition(x.float()), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ROUNDED)
def test_logits_err_as_much_as_those_of_the_reference(name: str, made: Made) -> None:
    checkpoint = open_checkpoint(made(name))
    model = native_model(made(name))
    assert formats_of(model) == {Format.W8A8}
    exact = logits_of(load_model(Expanded(checkpoint), ReferenceOps(CPU, torch.float32), 64))
    expected = logits_of(load_model(checkpoint, RoundingReference(CPU, torch.float32), 64))
    moved = np.linalg.norm(expected - exact)
    assert 0.002 < moved / np.linalg.norm(exact) < 0.1
    assert 0.5 * moved < np.linalg.norm(logits_of(model) - exact) < 1.5 * moved


@pytest.mark.parametrize("name", NOT_ROUNDED)
def test_inputs_without_a_scale_are_not_rounded(name: str, made: Made) -> None:
    """Asymmetric weights, and a static scale that is missing or none to divide by."""
    assert formats_of(native_model(made(name))) == {Format.U8_128}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_tokens_logits_depend_on_its_sequence_alone(name: str, made: Made) -> None:
    model = native_model(made(name))
    alone = logits_of(model)
    for chunk in (1, 3):
        kv, found = model.allocate_kv(1), []
        for first in range(0, len(TOKENS), chunk):
            part = TOKENS[first : first + chunk]
            rows = StepRows(np.array([[0]]), np.array([len(part)]), np.array([first + len(part)]))
            found.append(model.logits(model.forward(part, rows, kv)))
        assert np.array_equal(np.concatenate(found), alone)
