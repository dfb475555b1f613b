"""Folders in Hugging Face's layout, written by transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from engine.checkpoints.checkpoint import open_checkpoint
from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.models.config import UnsupportedCheckpoint
from kernels.arrays import BFLOAT16, FLOAT32, Array
from tests.support.tiny_families import PLAIN_FAMILIES, TinyFamily
from tests.support.tiny_models import TinyFolder
from tests.support.tiny_tokenizer import write_tokenizer


@pytest.fixture
def folder(tiny_folder: TinyFolder, tmp_path: Path) -> Path:
    """A tiny llama that a test may break."""
    return Path(shutil.copytree(tiny_folder("llama"), tmp_path / "folder"))


@pytest.fixture
def sharded(tiny_folder: TinyFolder, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder("llama", max_shard_size="100KB"), tmp_path / "sharded"))


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(folder: Path, changes: dict[str, Array | None]) -> None:
    weights: dict[str, Array | None] = {**load_file(folder / "model.safetensors"), **changes}
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, folder / "model.safetensors")


@pytest.mark.parametrize("family", PLAIN_FAMILIES)
def test_every_family_with_llamas_names(family: TinyFamily, tiny_folder: TinyFolder) -> None:
    folder = tiny_folder(family)
    checkpoint = open_checkpoint(folder)
    stored = load_file(folder / "model.safetensors")
    weights = dict(checkpoint.tensors(FLOAT32))
    assert weights.keys() == stored.keys()
    assert all(np.array_equal(weights[name], stored[name]) for name in stored)
    assert checkpoint.weight_bytes == sum(tensor.nbytes for tensor in stored.values())
    assert checkpoint.path == folder


def test_shards_hold_the_same_as_one_file(tiny_folder: TinyFolder, sharded: Path) -> None:
    assert len(list(sharded.glob("*.safetensors"))) > 2
    weights, whole = (
        dict(HFCheckpoint(sharded).tensors(FLOAT32)),
        load_file(tiny_folder("llama") / "model.safetensors"),
    )
    assert weights.keys() == whole.keys()
    assert all(np.array_equal(weights[name], whole[name]) for name in whole)


def test_weights_are_converted_to_the_compute_dtype(tiny_folder: TinyFolder) -> None:
    checkpoint = HFCheckpoint(tiny_folder("qwen2", dtype=torch.bfloat16))
    exact = dict(checkpoint.tensors(BFLOAT16))
    for name, tensor in checkpoint.tensors(FLOAT32):
        assert exact[name].dtype == BFLOAT16
        assert np.array_equal(tensor, exact[name].astype(FLOAT32))


def test_the_generation_config_says_what_ends_a_sequence(folder: Path) -> None:
    edit_json(folder / "generation_config.json", eos_token_id=[2, 0])
    assert HFCheckpoint(folder).config.eos_token_ids == (2, 0)
    (folder / "generation_config.json").unlink()
    assert HFCheckpoint(folder).config.eos_token_ids == (2,)


def test_a_tied_head_that_was_stored_anyway_is_passed_over(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder("qwen3"), tmp_path / "folder"))
    edit_weights(folder, {"lm_head.weight": np.zeros((512, 64), np.float32)})
    assert "lm_head.weight" not in dict(HFCheckpoint(folder).tensors(FLOAT32))


def test_computed_rope_buffers_of_old_files_are_passed_over(folder: Path) -> None:
    edit_weights(folder, {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8, np.float32)})
    assert len(dict(HFCheckpoint(folder).tensors(FLOAT32))) == 21


def test_the_text_processor_reads_the_folder(tiny_folder: TinyFolder) -> None:
    processor = HFCheckpoint(tiny_folder("llama")).text_processor()
    assert processor.decode(processor.encode("a queue")) == "a queue"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model.norm.weight": None}, "tensor model.norm.weight is missing"),
        ({"lm_head.weight": None}, "tensor lm_head.weight is missing"),
        ({"model.norm.bias": np.zeros(64, np.float32)}, "tensor model.norm.bias is not understood"),
        (
            {"model.layers.2.mlp.up_proj.weight": np.zeros(1, np.float32)},
            "tensor model.layers.2.mlp.up_proj.weight is not",
        ),
        ({"model.norm.weight": np.zeros(63, np.float32)}, "tensor model.norm.weight has shape [63], not [64]"),
        ({"model.norm.weight": np.zeros(64, np.int8)}, "tensor model.norm.weight has type I8"),
        ({"a\nb": np.zeros(1, np.float32)}, r"tensor 'a\nb' is not printable"),
    ],
)
def test_weights_of_wrong_shape_are_refused(changes: dict[str, Array | None], named: str, folder: Path) -> None:
    edit_weights(folder, changes)
    with pytest.raises(UnsupportedCheckpoint) as caught:
        HFCheckpoint(folder)
    assert named in str(caught.value)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a\\b.safetensors", "model.bin", 7, None])
def test_an_index_reaches_no_other_file(name: Any, sharded: Path) -> None:
    (sharded.parent / "secret.safetensors").write_bytes(b"secret")
    index = sharded / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"] | {"model.norm.weight": name}
    edit_json(index, weight_map=weight_map)
    with pytest.raises(UnsupportedCheckpoint, match=r"weight_map: model\.norm\.weight: .* is not a file name"):
        HFCheckpoint(sharded)


def test_a_missing_shard_is_refused_by_name(sharded: Path) -> None:
    next(sharded.glob("model-00002-*")).unlink()
    with pytest.raises(UnsupportedCheckpoint, match="model-00002"):
        HFCheckpoint(sharded)


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    first, second = sorted(sharded.glob("model-*.safetensors"))[:2]
    save_file({**load_file(first), **load_file(second)}, second)
    with pytest.raises(UnsupportedCheckpoint, match="is in both"):
        HFCheckpoint(sharded)


def test_an_index_that_misplaces_a_tensor_is_refused(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    other = next(file for file in weight_map.values() if file != weight_map["model.norm.weight"])
    edit_json(index, weight_map=weight_map | {"model.norm.weight": other})
    with pytest.raises(UnsupportedCheckpoint, match=r"model\.norm\.weight is in .*; the index says"):
        HFCheckpoint(sharded)


def test_pickled_weights_are_never_opened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(UnsupportedCheckpoint, match="only pickled weights"):
        HFCheckpoint(folder)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedCheckpoint, match=r"neither model\.safetensors nor"):
        HFCheckpoint(folder)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    with pytest.raises(UnsupportedCheckpoint, match=r"config\.json: cannot be read"):
        HFCheckpoint(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b"9" * 5000])
def test_a_config_that_is_no_json_object_is_refused(data: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(data)
    with pytest.raises(UnsupportedCheckpoint, match=r"config\.json: is not"):
        HFCheckpoint(folder)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 2000, -1])
def test_a_truncated_file_is_refused(keep: int, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UnsupportedCheckpoint, match=r"model\.safetensors: cannot be read"):
        HFCheckpoint(folder)
