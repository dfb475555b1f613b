"""Quantised folders of families whose files differ from the model's layout: fused or reordered projections, and experts
with names of their own."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
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
from kernels.arrays import FLOAT32, Array, Floats
from kernels.cpu.native_ops import computes_natively
from kernels.dispatch import select_ops
from kernels.reference_ops import ReferenceOps
from tests.engine.models.quantization.folders import CASES, Case, write
from tests.engine.models.quantization.packing import float8
from tests.support.host_logits import TOKENS, Expanded, logits_of
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import TinyFolder, reference_model

needs_kernels = pytest.mark.skipif(not computes_natively(), reason="products are not native here")
LATENT = ("deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "glm4_moe_lite")
HYBRID = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
GEMMA4 = ("gemma4", "gemma4_moe", "gemma4_shared", "gemma4_images")
families = pytest.mark.parametrize(
    "family", ["phi3", "glm4", "mixtral", "qwen3_moe", "olmoe", *GEMMA4, *LATENT, *HYBRID]
)
NAMES = ("gptq-4-32-gptq-sym", "awq-32", "pack-4-32-asym", "int8-sym", "fp8-(96, 160)", "fp8-None", "mxfp4", "nf4")
STACKED = re.compile(r"\.experts\.\w+_proj$")
PROJECTION = re.compile(r"(_proj(_\w+)?|_projection|per_layer_input_gate)\.weight$")
cases = pytest.mark.parametrize("case", [case for case in CASES if case.name in NAMES], ids=lambda case: case.name)
_GROUPED = {"moe_intermediate_size": 64, "kv_lora_rank": 32, "q_lora_rank": 64, "v_head_dim": 16}
_SPARSE = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
OVERRIDES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"moe_intermediate_size": 64},
    "olmoe": {"intermediate_size": 64},
    **dict.fromkeys(LATENT, _GROUPED),
    "deepseek_v2_lite": _GROUPED | {"q_lora_rank": None},
    "glm4_moe_lite": _GROUPED | {"v_head_dim": 24},
    "gemma4_moe": {"moe_intermediate_size": 64},
    "gemma4_shared": {"hidden_size_per_layer_input": 32},
    "qwen3_next": _SPARSE,
    "qwen3_5_moe": _SPARSE,
}
"""Widths that are whole groups."""
ALL_EXPERTS: dict[str, dict[str, Any]] = {
    **{family: {"num_experts_per_tok": 8, "topk_group": 4} for family in LATENT},
    **{family: {"num_experts_per_tok": 8} for family in ("qwen3_next", "qwen3_5_moe")},
    "gemma4_moe": {"top_k_experts": 8},
}
"""Rounded numbers choose the same experts: all."""
GATES = ("in_proj_ba", "in_proj_b.", "in_proj_a.")
"""Of delta nets; publishers leave them plain."""


def made(
    family: TinyFamily, case: Case, tiny_folder: TinyFolder, path: Path, **overrides: Any
) -> tuple[HFCheckpoint, dict[str, Floats]]:
    """A quantised folder, and by the names of the layout the numbers that it stands for: those of a plain folder."""
    source = tiny_folder(family, **OVERRIDES.get(family, {}), **overrides)
    floats = write(path / "quantized", source, replace(case, plain=(*case.plain, *GATES, "vision")))
    shutil.copytree(source, path / "plain")
    plain = stacked(floats) if family in GEMMA4 else floats
    save_file(
        {name: np.ascontiguousarray(tensor) for name, tensor in plain.items()}, path / "plain" / "model.safetensors"
    )
    return HFCheckpoint(path / "quantized"), dict(HFCheckpoint(path / "plain").tensors(FLOAT32))


def stacked(tensors: Mapping[str, Array], module: str = "", kind: str = "weight") -> dict[str, Array]:
    """The tensors with one for the matrices of all experts, as Gemma 4 has them, in place of one for each. module: what
    the name of that tensor ends in; kind: the ending of the others."""
    result: dict[str, Array] = {}
    parts: dict[str, dict[tuple[int, str], Array]] = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(rf"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.{kind}", name)
        if match is None:
            result[name] = tensor
            continue
        fused = "down" if match[3] == "down" else "gate_up"
        parts.setdefault(f"{match[1]}.{fused}_proj{module}", {})[int(match[2]), match[3]] = tensor
    for name, of_experts in parts.items():
        kinds = ("down",) if "down_proj" in name else ("gate", "up")
        count = len(of_experts) // len(kinds)
        result[name] = np.stack([np.concatenate([of_experts[index, part] for part in kinds]) for index in range(count)])
    return result


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
    projections = {name for name in expected if PROJECTION.search(name) and not any(gate in name for gate in GATES)}
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
    checkpoint, _ = made(family, case, tiny_folder, tmp_path, **ALL_EXPERTS.get(family, {}))
    exact = logits_of(load_model(Expanded(checkpoint), ReferenceOps(torch.device("cpu"), torch.float32), 64))
    model = load_model(checkpoint, select_ops("bfloat16", threads=2, device="cpu"), 64)
    assert isinstance(model, NativeModel)
    limit = 0.12 if family in HYBRID else 0.06  # a recurrent state adds up what bf16 rounds
    if family in GEMMA4 and case.rounds:
        limit = 0.16  # scores are not scaled down, so that rounded inputs move them more
    assert np.linalg.norm(logits_of(model) - exact) < limit * np.linalg.norm(exact)


@cases
@pytest.mark.parametrize("family", [*GEMMA4, *LATENT, *HYBRID])
def test_logits_are_those_of_transformers(
    family: TinyFamily, case: Case, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    """Which reads the numbers that the quantised weights stand for."""
    checkpoint, _ = made(family, case, tiny_folder, tmp_path)
    with torch.inference_mode():
        expected = reference_model(tmp_path / "plain")(torch.tensor([TOKENS.tolist()])).logits[0]
    found = logits_of(load_model(checkpoint, ReferenceOps(torch.device("cpu"), torch.float32), 64))
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("family", ["deepseek_v3", *HYBRID])
def test_folders_that_transformers_reads_as_fp8(family: TinyFamily, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    """In blocks of 128 x 128, with the gates and the router plain, as publishers write them. transformers expands them
    to bf16; stacked experts have stacked scales."""
    keys = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 2}
    if family == "deepseek_v3":
        keys |= {"kv_lora_rank": 128, "q_lora_rank": 128, "v_head_dim": 64, "qk_nope_head_dim": 64}
        keys |= {"qk_rope_head_dim": 128, "num_key_value_heads": 2, "moe_intermediate_size": 128}
    else:
        keys |= {"head_dim": 64, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
    if family in ("qwen3_next", "qwen3_5_moe"):
        keys |= {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 128}
    source, folder = tiny_folder(family, **keys), tmp_path / "fp8"
    shutil.copytree(source, folder)
    tensors: dict[str, Array] = {}
    plain = ["lm_head"]
    for name, tensor in load_file(source / "model.safetensors").items():
        stacked, linear_layer = STACKED.search(name) is not None, PROJECTION.search(name) is not None
        if not (stacked or linear_layer) or any(gate in name for gate in GATES):
            tensors[name] = tensor
            plain += [name.removesuffix(".weight")] if tensor.ndim == 2 else []
            continue
        matrices = [float8(matrix, (128, 128)) for matrix in (tensor if stacked else [tensor])]
        codes, scales = (np.stack([matrix[part] for matrix in matrices]) for part in (0, 1))
        scale_name = f"{name}_scale_inv"
        tensors[name], tensors[scale_name] = (codes, scales) if stacked else (codes[0], scales[0])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    quantization = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantization | {"modules_to_not_convert": plain}
    (folder / "config.json").write_text(json.dumps(config))
    with torch.inference_mode():
        model = reference_model(folder).float()
        expected = model(torch.tensor([TOKENS.tolist()])).logits[0].numpy()
    checkpoint = HFCheckpoint(folder)
    assert {matrix.block_format for matrix in checkpoint.quantized.values()} == {"e4m3_128"}
    found = logits_of(load_model(checkpoint, ReferenceOps(torch.device("cpu"), torch.float32), 64))
    error = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert np.median(error) < 0.02, error  # transformers rounds the weights to bf16


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


@pytest.mark.parametrize(
    ("family", "tensor", "change", "message"),
    [
        ("qwen3_next", "0.linear_attn.in_proj_qkvz.weight_packed", lambda array: array[:-8], "has shape"),
        ("qwen3_next", "0.linear_attn.in_proj_qkvz.weight_scale", None, "is missing"),
        ("qwen3_5", "1.self_attn.q_proj.weight_packed", lambda array: array[: len(array) // 2], "has shape"),
        ("deepseek_v3", "0.self_attn.kv_a_proj_with_mqa.weight_packed", lambda array: array[:-1], "has shape"),
        ("deepseek_v3", "0.self_attn.kv_b_proj.weight_zero_point", None, "is missing"),
        ("deepseek_v3", "1.mlp.shared_experts.up_proj.weight_scale", lambda array: array[:, :1], "has shape"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    family: TinyFamily,
    tensor: str,
    change: Callable[[Array], Array] | None,
    message: str,
    tiny_folder: TinyFolder,
    tmp_path: Path,
) -> None:
    made(family, next(case for case in CASES if case.name == "pack-4-32-asym"), tiny_folder, tmp_path)
    file, name = tmp_path / "quantized" / "model.safetensors", f"model.layers.{tensor}"
    tensors = load_file(file)
    changed = tensors.pop(name)
    if change is not None:
        tensors[name] = np.ascontiguousarray(change(changed))
    save_file(tensors, file)
    with pytest.raises(UnsupportedCheckpoint, match=f"{name.replace('shared_experts', 'shared_expert')} .*{message}"):
        HFCheckpoint(tmp_path / "quantized")


@pytest.mark.parametrize("ignored", ["model.layers.1.mlp.shared_experts.up_proj", "re:.*shared_experts.*up_proj"])
def test_config_names_modules_as_the_files_do(ignored: str, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    """A module that is not quantised by its name, and has no plain weight, is refused."""
    made(
        "deepseek_v3",
        next(case for case in CASES if case.name == "pack-4-32-asym"),
        tiny_folder,
        tmp_path,
    )
    file = tmp_path / "quantized" / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"]["ignore"].append(ignored)
    file.write_text(json.dumps(config))
    with pytest.raises(UnsupportedCheckpoint, match="shared_expert"):
        HFCheckpoint(tmp_path / "quantized")


def test_a_fused_matrix_with_too_few_rows_is_refused_by_name(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    made("phi3", next(case for case in CASES if case.name == "gptq-4-32-gptq-sym"), tiny_folder, tmp_path)
    file, name = tmp_path / "quantized" / "model.safetensors", "model.layers.0.self_attn.qkv_proj.qweight"
    tensors = load_file(file)
    tensors[name] = np.ascontiguousarray(tensors[name][:, :-8])
    save_file(tensors, file)
    with pytest.raises(UnsupportedCheckpoint, match=f"tensor {name} has shape"):
        HFCheckpoint(tmp_path / "quantized")


def with_stacked_experts(tiny_folder: TinyFolder, path: Path) -> tuple[Path, dict[str, Floats]]:
    """A folder of Gemma 4 in W4A16 with the codes of all experts in one tensor, and the numbers that it stands for."""
    case = next(case for case in CASES if case.name == "pack-4-32-sym")
    _, expected = made("gemma4_moe", case, tiny_folder, path)
    file = path / "quantized" / "model.safetensors"
    tensors = load_file(file)
    tensors = {name: tensor for name, tensor in tensors.items() if not re.search(r"experts.*weight_shape$", name)}
    tensors = stacked(stacked(tensors, "_packed", "weight_packed"), "_scale", "weight_scale")
    assert not any(re.search(r"\.experts\.\d", name) for name in tensors)
    save_file(tensors, file, {"format": "pt"})
    return file, expected


def test_codes_of_all_experts_may_be_one_tensor(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    file, expected = with_stacked_experts(tiny_folder, tmp_path)
    checkpoint = HFCheckpoint(file.parent)
    for name, weight in checkpoint.tensors(FLOAT32):
        np.testing.assert_allclose(weight, expected.pop(name), rtol=2e-7, atol=0, err_msg=name)
    assert not expected
    blocks = {matrix.block_format for name, matrix in checkpoint.quantized.items() if ".experts." in name}
    assert blocks == {"u4_32"}


@pytest.mark.parametrize(
    ("tensor", "change", "message"),
    [
        ("experts.down_proj_packed", lambda array: array[:-1], "has shape"),
        ("experts.gate_up_proj_packed", lambda array: array[:, :-1], "has shape"),
        ("experts.gate_up_proj_scale", None, "is missing"),
        ("experts.down_proj_zero_point", lambda _: np.zeros((8, 8, 2), np.int32), "has type I32"),
        ("experts.switch_glu.down_proj.scales", lambda _: np.zeros((8, 64, 2), np.float32), "is not understood"),
    ],
)
def test_stacked_experts_that_do_not_fit_are_refused_by_name(
    tensor: str,
    change: Callable[[Array | None], Array] | None,
    message: str,
    tiny_folder: TinyFolder,
    tmp_path: Path,
) -> None:
    file, _ = with_stacked_experts(tiny_folder, tmp_path)
    name = f"model.layers.1.{tensor}"
    tensors = load_file(file)
    changed = tensors.pop(name, None)
    if change is not None:
        tensors[name] = np.ascontiguousarray(change(changed))
    save_file(tensors, file)
    named = r"model\.layers\.1\.(mlp\.)?experts\..*" if change is None else re.escape(name)
    with pytest.raises(UnsupportedCheckpoint, match=f"{named}.*{message}"):
        HFCheckpoint(file.parent)
