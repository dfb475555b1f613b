"""Quantised folders of families whose files differ from the model's layout: fused or reordered projections, and experts
with names of their own."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.models.config import UnsupportedCheckpoint
from engine.models.loader import load_model
from engine.models.native_model import NativeModel
from kernels.arrays import FLOAT32, Floats
from kernels.cpu.native_ops import computes_natively
from kernels.dispatch import select_ops
from kernels.reference_ops import ReferenceOps
from tests.engine.models.quantization.folders import CASES, Case, write
from tests.support.host_logits import TOKENS, Expanded, logits_of
from tests.support.tiny_models import TinyFamily, TinyFolder

needs_kernels = pytest.mark.skipif(not computes_natively(), reason="products are not native here")
families = pytest.mark.parametrize("family", ["phi3", "glm4", "mixtral", "qwen3_moe", "olmoe"])
NAMES = ("gptq-4-32-gptq-sym", "awq-32", "pack-4-32-asym", "fp8-None", "mxfp4")
cases = pytest.mark.parametrize("case", [case for case in CASES if case.name in NAMES], ids=lambda case: case.name)
OVERRIDES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"moe_intermediate_size": 64},
    "olmoe": {"intermediate_size": 64},
}


def made(family: TinyFamily, case: Case, tiny_folder: TinyFolder, path: Path) -> tuple[HFCheckpoint, dict[str, Floats]]:
    """A quantised folder, and by the names of the layout the numbers that it stands for: those of a plain folder."""
    source = tiny_folder(family, **OVERRIDES.get(family, {}))
    floats = write(path / "quantized", source, case)
    shutil.copytree(source, path / "plain")
    save_file(
        {name: np.ascontiguousarray(tensor) for name, tensor in floats.items()}, path / "plain" / "model.safetensors"
    )
    return HFCheckpoint(path / "quantized"), dict(HFCheckpoint(path / "plain").tensors(FLOAT32))


@families
@cases
def test_weights_are_those_of_the_plain_folder(
    family: TinyFamily, case: Case, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    checkpoint, expected = made(family, case, tiny_folder, tmp_path)
    weights = dict(checkpoint.tensors(FLOAT32))
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        np.testing.assert_allclose(weight, expected[name], rtol=2e-7, atol=0, err_msg=name)


@families
def test_every_projection_stays_in_blocks(family: TinyFamily, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "pack-4-32-asym")
    checkpoint, expected = made(family, case, tiny_folder, tmp_path)
    projections = {name for name in expected if name.endswith("_proj.weight")}
    assert checkpoint.quantized.keys() == projections
    assert {matrix.block_format for matrix in checkpoint.quantized.values()} == {"u4_32"}
    stored = dict(checkpoint.stored(projections))
    assert stored.keys() == projections
    for name, weight in stored.items():
        assert (weight.out_features, weight.in_features) == expected[name].shape


@needs_kernels
@families
@cases
def test_native_logits_are_near_those_of_the_floats(
    family: TinyFamily, case: Case, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    checkpoint, _ = made(family, case, tiny_folder, tmp_path)
    exact = logits_of(load_model(Expanded(checkpoint), ReferenceOps(torch.device("cpu"), torch.float32), 64))
    model = load_model(checkpoint, select_ops("bfloat16", threads=2, device="cpu"), 64)
    assert isinstance(model, NativeModel)
    assert np.linalg.norm(logits_of(model) - exact) < 0.06 * np.linalg.norm(exact)


@needs_kernels
@families
def test_a_token_depends_on_its_sequence_alone_to_the_bit(
    family: TinyFamily, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    case = next(case for case in CASES if case.name == "gptq-4-32-gptq-sym")
    checkpoint, _ = made(family, case, tiny_folder, tmp_path)
    model = load_model(checkpoint, select_ops("bfloat16", threads=2, device="cpu"), 64)
    whole = logits_of(model)
    for count in (1, 2, len(TOKENS) - 1):
        assert np.array_equal(logits_of(model, TOKENS[:count]), whole[:count])


def test_a_fused_matrix_with_too_few_rows_is_refused_by_name(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    made("phi3", next(case for case in CASES if case.name == "gptq-4-32-gptq-sym"), tiny_folder, tmp_path)
    file, name = tmp_path / "quantized" / "model.safetensors", "model.layers.0.self_attn.qkv_proj.qweight"
    tensors = load_file(file)
    tensors[name] = np.ascontiguousarray(tensors[name][:, :-8])
    save_file(tensors, file)
    with pytest.raises(UnsupportedCheckpoint, match=f"tensor {name} has shape"):
        HFCheckpoint(tmp_path / "quantized")
