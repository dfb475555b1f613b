"""The tensors of a file that a family loads, by the names that it has for them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.models.config import UnsupportedCheckpoint
from kernels.arrays import BFLOAT16, FLOAT32, Array
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import TinyFolder

OLD_PREFIXES = {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."}
TOWERS = ("vision_tower.", "multi_modal_projector.")


def renamed(name: str) -> str:
    """A name of older files as newer ones have it."""
    for old, new in OLD_PREFIXES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return f"model.{name}" if name.startswith(TOWERS) else name


def rewritten(folder: Path, target: Path, tensors: dict[str, torch.Tensor]) -> Path:
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def weights_of(folder: Path) -> dict[str, Array]:
    return dict(HFCheckpoint(folder).tensors(FLOAT32))


@pytest.mark.parametrize("family", ["mistral3", "gemma3_images"])
def test_older_and_newer_names_of_a_multimodal_model(
    family: TinyFamily, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    folder = tiny_folder(family)
    stored = load_file(folder / "model.safetensors")
    newer = {renamed(name): tensor for name, tensor in stored.items()}
    assert not newer.keys() & {name for name in stored if name.startswith(TOWERS)}
    weights, expected = weights_of(rewritten(folder, tmp_path / "newer", newer)), weights_of(folder)
    assert weights.keys() == expected.keys()
    assert all(np.array_equal(weights[name], expected[name]) for name in weights)
    towers = sum(tensor.nbytes for name, tensor in stored.items() if name.startswith(TOWERS))
    assert HFCheckpoint(folder).weight_bytes == sum(tensor.nbytes for tensor in stored.values()) - towers


@pytest.mark.parametrize("turned", [False, True])
def test_stacked_experts_in_either_order(turned: bool, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = tiny_folder("qwen3_vl_moe")
    stored = load_file(folder / "model.safetensors")
    names = [name for name in stored if ".mlp.experts." in name]
    turned_over = {name: stored[name].transpose(1, 2).contiguous() for name in names} if turned else {}
    weights = weights_of(rewritten(folder, tmp_path / "model", stored | turned_over))
    whole = stored["model.language_model.layers.1.mlp.experts.gate_up_proj"].numpy()
    assert np.array_equal(weights["model.layers.1.mlp.experts.3.gate_proj.weight"], whole[3, :40])
    assert np.array_equal(weights["model.layers.1.mlp.experts.3.up_proj.weight"], whole[3, 40:])


@pytest.mark.parametrize("shape", [(7, 80, 64), (8, 78, 64), (8, 80), (8,), ()])
def test_experts_of_another_shape_are_refused(shape: tuple[int, ...], tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder, name = tiny_folder("qwen3_vl_moe"), "model.language_model.layers.0.mlp.experts.gate_up_proj"
    stored = load_file(folder / "model.safetensors") | {name: torch.zeros(shape)}
    with pytest.raises(UnsupportedCheckpoint, match=rf"tensor {name} has shape"):
        HFCheckpoint(rewritten(folder, tmp_path / "model", stored))


def test_a_layer_that_drafts_is_not_loaded(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    extra = {"model.layers.3.enorm.weight": torch.ones(64), "model.layers.3.mlp.gate.weight": torch.ones(8, 64)}
    for family, is_ignored in (("glm4_moe", True), ("deepseek_v3", True), ("qwen3_moe", False)):
        folder = tiny_folder(family)
        path = rewritten(folder, tmp_path / family, load_file(folder / "model.safetensors") | extra)
        if is_ignored:
            assert weights_of(path).keys() == weights_of(folder).keys()
        else:
            with pytest.raises(UnsupportedCheckpoint, match=r"model\.layers\.3\.\S+ is not understood"):
                HFCheckpoint(path)


@pytest.mark.parametrize(
    ("family", "tensor"), [("glm4_moe", "mlp.gate.e_score_correction_bias"), ("gpt_oss", "self_attn.sinks")]
)
def test_what_decides_by_small_differences_is_not_rounded(
    family: TinyFamily, tensor: str, tiny_folder: TinyFolder
) -> None:
    folder, name = tiny_folder(family), f"model.layers.1.{tensor}"
    rounded, exact = dict(HFCheckpoint(folder).tensors(BFLOAT16)), weights_of(folder)
    assert rounded[name].dtype == FLOAT32
    assert np.array_equal(rounded[name], exact[name])
    assert rounded["model.norm.weight"].dtype == BFLOAT16
