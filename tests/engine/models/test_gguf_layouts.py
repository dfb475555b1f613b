"""GGUF files of latent attention and of gated delta nets, whose tensors are not those of a folder under other names."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as BlockType

from engine.checkpoints.gguf.file import GGUFCheckpoint
from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.models.config import UnsupportedCheckpoint
from engine.models.expansion import kept_matrices
from engine.models.loader import host_model, load_model
from kernels.arrays import FLOAT32
from kernels.cpu.native import library
from kernels.cpu.native_ops import NativeOps
from tests.engine.execution.harness import forward_logits, load_tiny, prompt
from tests.engine.models.tiny_gguf import make_gguf, write
from tests.support.tiny_families import FAMILY_KEYS, TinyFamily
from tests.support.tiny_models import TinyFolder, reference_model

# A file states one of the two scales of YaRN: in published models both are the same.
ONE_SCALE: dict[str, Any] = {"rope_parameters": FAMILY_KEYS["deepseek_v2"]["rope_parameters"] | {"mscale": 0.7}}
LATENT: tuple[TinyFamily, ...] = ("deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "glm4_moe_lite")
HYBRID: tuple[TinyFamily, ...] = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
OVERRIDES: dict[TinyFamily, dict[str, Any]] = {
    "deepseek_v2": ONE_SCALE,
    "deepseek_v2_lite": ONE_SCALE,
    "deepseek_v3": ONE_SCALE | {"attention_bias": False},
    "glm4_moe_lite": {},
    "qwen3_next": {},
    "qwen3_5": {"linear_num_value_heads": 6},
    "qwen3_5_moe": {},
}


def written(tiny_folder: TinyFolder, family: TinyFamily, path: Path, **more: Any) -> tuple[Path, Path]:
    """A folder and the file made of it."""
    folder = tiny_folder(family, **OVERRIDES[family], **more.pop("shape", {}))
    return folder, make_gguf(path / "tiny.gguf", folder, **more)


@pytest.mark.parametrize("older", [False, True], ids=["", "older"])
@pytest.mark.parametrize("family", [*LATENT, *HYBRID])
def test_a_file_computes_what_transformers_does(
    family: TinyFamily, older: bool, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    folder, path = written(tiny_folder, family, tmp_path, older=older)
    tokens = prompt(70)
    with torch.inference_mode():
        expected = reference_model(folder)(torch.tensor([tokens])).logits[0]
    given = forward_logits(load_tiny(path), tokens, 33)
    # Tiled value heads are summed up in another order.
    tolerance = 1e-4 if family.startswith("qwen3_5") else 1e-5
    of_folder = forward_logits(load_tiny(folder), tokens, 33)
    torch.testing.assert_close(given, of_folder, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(given, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("older", [False, True], ids=["", "older"])
@pytest.mark.parametrize("family", [*LATENT, "qwen3_next"])
def test_a_file_has_the_weights_of_its_folder(
    family: TinyFamily, older: bool, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    folder, path = written(tiny_folder, family, tmp_path, older=older)
    source, checkpoint = HFCheckpoint(folder), GGUFCheckpoint(path)
    expected = dict(source.tensors(FLOAT32))
    for name, array in checkpoint.tensors(FLOAT32):
        numbers = expected.pop(name)
        if name.endswith("norm.weight") and "linear_attn" not in name:
            numbers = numbers + np.float32(source.config.norm_offset)
        tolerance = 1e-6 if name.endswith("A_log") else 0
        np.testing.assert_allclose(array, numbers, rtol=tolerance, atol=tolerance, err_msg=name)
    assert not expected
    assert checkpoint.weight_bytes == source.weight_bytes
    assert (checkpoint.config.norm_offset, checkpoint.config.num_heads) == (0, source.config.num_heads)


ARCHITECTURES = {"deepseek2": "DEEPSEEK2", "qwen3next": "QWEN3NEXT", "qwen35": "QWEN35", "qwen35moe": "QWEN35MOE"}


@pytest.mark.parametrize("family", [*LATENT, *HYBRID])
def test_the_files_have_the_names_of_gguf(family: TinyFamily, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    """Those that the package `gguf` knows of the architecture."""
    folder, path = written(tiny_folder, family, tmp_path)
    reader = gguf.GGUFReader(path)
    arch = gguf.MODEL_ARCH[ARCHITECTURES[bytes(reader.fields["general.architecture"].parts[-1]).decode()]]
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[arch]}
    for tensor in reader.tensors:
        parts = tensor.name.removesuffix(".weight").removesuffix(".bias").split(".")
        assert parts[-1] in {name.removeprefix("blk.{bid}.") for name in known}, tensor.name
    config = json.loads((folder / "config.json").read_text())
    assert GGUFCheckpoint(path).config.num_layers == config["num_hidden_layers"]


def rewritten(path: Path, target: Path, block_type: BlockType) -> Path:
    """The file with its matrices in blocks: of the numbers, or random ones of a type that the package cannot make."""
    generator = np.random.default_rng(0)
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(target, bytes(reader.fields["general.architecture"].parts[-1]).decode())
    _copy_keys(reader, writer)
    for tensor in reader.tensors:
        array = tensor.data.reshape(tensor.shape[::-1])
        block, _ = gguf.GGML_QUANT_SIZES[block_type]
        if array.ndim < 2 or array.shape[-1] % block or "conv1d" in tensor.name or "token_embd" in tensor.name:
            writer.add_tensor(tensor.name, array)
        else:
            rows = _blocks(array, block_type, generator)
            writer.add_tensor(tensor.name, rows, raw_dtype=block_type)
    write(writer)
    return target


def expanded(path: Path, target: Path) -> Path:
    """The file with the numbers of its blocks."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(target, bytes(reader.fields["general.architecture"].parts[-1]).decode())
    _copy_keys(reader, writer)
    for tensor in reader.tensors:
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, numbers.reshape(tensor.shape[::-1]).astype(np.float32))
    write(writer)
    return target


def _copy_keys(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            kind, *inner = field.types
            writer.add_key_value(field.name, field.contents(), kind, inner[0] if inner else None)


def _blocks(array: np.ndarray, block_type: BlockType, generator: np.random.Generator) -> np.ndarray:
    if block_type != BlockType.Q4_K:
        return gguf.quants.quantize(array, block_type)
    blocks = generator.integers(0, 256, (array.size // 256, 144), np.uint8)
    scales = (generator.uniform(0.5, 1.5, (len(blocks), 2)) * [2e-4, 1e-3]).astype(np.float16)
    blocks[:, :4] = scales.view(np.uint8)
    return blocks.reshape(*array.shape[:-1], -1)


WIDE: dict[TinyFamily, dict[str, Any]] = {
    "deepseek_v2": {"hidden_size": 256, "qk_nope_head_dim": 32, "kv_lora_rank": 256, "q_lora_rank": 64}
    | {"v_head_dim": 32, "moe_intermediate_size": 64},
    "qwen3_5": {"hidden_size": 256, "linear_num_key_heads": 2, "linear_value_head_dim": 64, "head_dim": 32}
    | {"linear_num_value_heads": 8, "num_attention_heads": 8, "intermediate_size": 256},
    "qwen3_next": {"hidden_size": 256, "linear_value_head_dim": 64, "moe_intermediate_size": 64},
}


@pytest.mark.parametrize("block_type", [BlockType.Q8_0, BlockType.Q4_K], ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", WIDE)
def test_blocks_are_where_their_numbers_would_be(
    family: TinyFamily, block_type: BlockType, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    path = make_gguf(tmp_path / "plain.gguf", tiny_folder(family, **(OVERRIDES[family] | WIDE[family])))
    blocks = rewritten(path, tmp_path / "blocks.gguf", block_type)
    numbers = expanded(blocks, tmp_path / "numbers.gguf")
    checkpoint = GGUFCheckpoint(blocks)
    expected = dict(GGUFCheckpoint(numbers).tensors(FLOAT32))
    for name, array in checkpoint.tensors(FLOAT32):
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    for name, weight in checkpoint.stored(checkpoint.quantized.keys()):
        rows = gguf.quants.dequantize(weight.rows, block_type)
        np.testing.assert_array_equal(rows, expected[name], err_msg=name)
    stored = {name.split(".", 3)[-1] for name in checkpoint.quantized}
    inputs = {"deepseek_v2": "kv_a_proj_with_mqa", "qwen3_5": "gate_proj", "qwen3_next": "gate_proj"}[family]
    assert f"self_attn.{inputs}.weight" in stored
    assert not {name for name in stored if "kv_b_proj" in name}, "a transposed matrix in blocks"
    tokens = prompt(40)
    torch.testing.assert_close(
        forward_logits(load_tiny(blocks), tokens, 17), forward_logits(load_tiny(numbers), tokens, 17), atol=0, rtol=0
    )


@pytest.mark.skipif(library.load() is None, reason="the native library is not built")
def test_a_model_whose_value_heads_are_tiled_is_computed_with_its_blocks(
    tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    """The native library's products take the projection of tiled heads as it is stored."""
    path = make_gguf(tmp_path / "plain.gguf", tiny_folder("qwen3_5", **(OVERRIDES["qwen3_5"] | WIDE["qwen3_5"])))
    blocks = rewritten(path, tmp_path / "blocks.gguf", BlockType.Q8_0)
    ops = NativeOps(2)
    checkpoint = GGUFCheckpoint(blocks)
    kept = kept_matrices(checkpoint, ops.takes_blocks)
    assert "model.layers.0.linear_attn.out_proj.weight" in kept
    model = load_model(checkpoint, ops, checkpoint.config.max_position)
    tokens = prompt(40)
    given = forward_logits(host_model(model), tokens, 17)
    expected = forward_logits(load_tiny(expanded(blocks, tmp_path / "numbers.gguf")), tokens, 17)
    error = (given - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < 0.06, f"{error} of the logits: more than the rounding to bfloat16"


@pytest.mark.parametrize(
    ("family", "keys", "named"),
    [
        ("deepseek_v2", {"deepseek2.attention.kv_lora_rank": None}, "attention.kv_lora_rank: is missing"),
        ("deepseek_v2", {"deepseek2.attention.kv_lora_rank": 32}, "blk.0.attn_k_b.weight has shape"),
        ("deepseek_v2", {"deepseek2.attention.value_length_mla": 8}, "blk.0.attn_v_b.weight has shape"),
        ("deepseek_v2", {"deepseek2.attention.key_length_mla": 20}, "blk.0.attn_k_b.weight has shape"),
        ("deepseek_v2", {"deepseek2.attention.key_length_mla": 8}, "latent attention"),
        ("deepseek_v2", {"deepseek2.attention.q_lora_rank": None}, "self_attn.q_proj"),
        ("deepseek_v2", {"deepseek2.rope.dimension_count": 24}, "latent attention"),
        ("deepseek_v2", {"deepseek2.attention.head_count": 8}, "blk.0.attn_k_b.weight has shape"),
        ("deepseek_v2", {"deepseek2.rope.scaling.yarn_log_multiplier": None}, "yarn_log_multiplier: is missing"),
        ("deepseek_v2", {"deepseek2.rope.scaling.yarn_log_multiplier": -0.1}, "yarn_log_multiplier"),
        ("deepseek_v2", {"deepseek2.rope.scaling.attn_factor": 2.0}, "rope.scaling.attn_factor"),
        ("deepseek_v2", {"deepseek2.attention.temperature_scale": 0.1}, "attention.temperature_scale"),
        ("deepseek_v2", {"deepseek2.expert_gating_func": 4}, "expert_gating_func"),
        ("deepseek_v2", {"deepseek2.expert_group_count": 3}, "group"),
        ("deepseek_v2", {"deepseek2.leading_dense_block_count": 0}, "model.layers.0.mlp"),
        ("deepseek_v3", {"deepseek2.leading_dense_block_count": 2}, "model.layers.1.mlp"),
        ("deepseek_v3", {"deepseek2.nextn_predict_layers": 3}, "nextn_predict_layers"),
        ("qwen3_next", {"qwen3next.ssm.inner_size": 130}, "ssm.inner_size"),
        ("qwen3_next", {"qwen3next.ssm.group_count": 3}, "linear attention"),
        ("qwen3_next", {"qwen3next.ssm.group_count": 1}, "linear_attn.in_proj_qkv"),
        ("qwen3_next", {"qwen3next.ssm.state_size": None}, "ssm.state_size: is missing"),
        ("qwen3_next", {"qwen3next.ssm.conv_kernel": 17}, "ssm.conv_kernel"),
        ("qwen3_next", {"qwen3next.ssm.conv_kernel": 3}, "linear_attn.conv1d"),
        ("qwen3_next", {"qwen3next.attention.recurrent_layers": [True, False]}, "attention.recurrent_layers"),
        ("qwen3_next", {"qwen3next.attention.recurrent_layers": [1, 1, 1, 0]}, "attention.recurrent_layers"),
        ("qwen3_next", {"qwen3next.attention.recurrent_layers": [True] * 4}, "linear_layers"),
        ("qwen3_next", {"qwen3next.attention.recurrent_layers": [True, True, False, True]}, "model.layers.2"),
        ("qwen3_next", {"qwen3next.attention.head_count": 2**24}, "blk.3.attn_q.weight has shape"),
        ("qwen3_5", {"qwen35.ssm.time_step_rank": 5}, "ssm.inner_size"),
        ("qwen3_5", {"qwen35.ssm.group_count": 0}, "ssm.group_count"),
        ("qwen3_5", {"qwen35.attention.recurrent_layers": None}, "model.layers.1"),
        ("qwen3_5", {"qwen35.feed_forward_length": None}, "feed_forward_length: is missing"),
        ("qwen3_5_moe", {"qwen35moe.expert_shared_feed_forward_length": 0}, "shared_expert"),
        ("qwen3_5_moe", {"qwen35moe.expert_used_count": 9}, "expert_used_count"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    family: TinyFamily, keys: dict[str, Any], named: str, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        GGUFCheckpoint(written(tiny_folder, family, tmp_path, keys=keys)[1])
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("family", "older", "vectors", "named"),
    [
        ("deepseek_v2", True, {"blk.0.attn_k_b.weight": [1.0]}, "tensor blk.0.attn_v_b.weight is missing"),
        ("deepseek_v2", False, {"blk.0.attn_kv_b.weight": [1.0]}, "blk.0.attn_kv_b.weight is in the file, too"),
        ("qwen3_next", True, {"blk.0.attn_qkv.weight": [1.0]}, "linear_attn.in_proj_qkv.weight is in tensor"),
        ("qwen3_next", False, {"blk.0.ssm_a.weight": [1.0]}, "tensor blk.0.ssm_a.weight is not understood"),
        ("qwen3_next", False, {"blk.0.ssm_norm": [1.0]}, "tensor blk.0.ssm_norm is not understood"),
        ("qwen3_next", False, {"blk.0.ffn_gate_up_exps.weight": [1.0]}, "not that of all experts"),
        ("qwen3_5", False, {"blk.0.ssm_ba.weight": [1.0]}, "tensor blk.0.ssm_ba.weight is not understood"),
    ],
)
def test_tensors_that_contradict_each_other_are_refused_by_name(
    family: TinyFamily,
    older: bool,
    vectors: dict[str, list[float]],
    named: str,
    tiny_folder: TinyFolder,
    tmp_path: Path,
) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        GGUFCheckpoint(written(tiny_folder, family, tmp_path, older=older, vectors=vectors)[1])
    assert named in str(caught.value)


def test_a_state_that_would_grow_is_refused(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    _, path = written(tiny_folder, "qwen3_5", tmp_path)
    with np.memmap(path, np.uint8, "r+")._mmap as data:  # type: ignore[attr-defined]
        info = GGUFCheckpoint(path)._stored["model.layers.0.linear_attn.A_log"].info
        data[info.offset : info.offset + 4] = np.float32(0.5).tobytes()
        data.flush()
    with pytest.raises(UnsupportedCheckpoint, match=r"blk\.0\.ssm_a: a number that is not negative"):
        dict(GGUFCheckpoint(path).tensors(FLOAT32))


def test_layers_that_draft_are_not_loaded(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    vectors = {"blk.5.nextn.enorm.weight": [1.0] * 64, "blk.5.attn_norm.weight": [1.0] * 64}
    flags = [True, False, True, False, True, False]
    keys = {"qwen35.block_count": 6, "qwen35.nextn_predict_layers": 1, "qwen35.attention.recurrent_layers": flags}
    folder, path = written(tiny_folder, "qwen3_5", tmp_path, keys=keys, vectors=vectors)
    checkpoint = GGUFCheckpoint(path)
    assert checkpoint.config.num_layers == 5
    assert dict(checkpoint.tensors(FLOAT32)).keys() == dict(HFCheckpoint(folder).tensors(FLOAT32)).keys()


def test_gate_and_up_of_all_experts_may_be_one_tensor(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    _, path = written(tiny_folder, "qwen3_next", tmp_path)
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "merged.gguf", "qwen3next")
    _copy_keys(reader, writer)
    arrays = {tensor.name: tensor.data.reshape(tensor.shape[::-1]) for tensor in reader.tensors}
    for layer in range(4):
        parts = [arrays.pop(f"blk.{layer}.ffn_{part}_exps.weight") for part in ("gate", "up")]
        arrays[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    write(writer)
    expected = dict(GGUFCheckpoint(path).tensors(FLOAT32))
    for name, array in GGUFCheckpoint(tmp_path / "merged.gguf").tensors(FLOAT32):
        np.testing.assert_array_equal(array, expected.pop(name), err_msg=name)
    assert not expected
