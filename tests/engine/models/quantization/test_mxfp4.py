"""The experts of gpt-oss in MXFP4: their meaning is transformers', their blocks are GGUF's."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.torch import load_file, save_file

from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.models.config import UnsupportedCheckpoint
from engine.models.expansion import weight_memory
from kernels.arrays import FLOAT32
from tests.engine.models.quantization.mxfp4_folders import EXPERTS, HIDDEN, INNER, set_keys, write_folders
from tests.support.tiny_models import TinyFolder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_folders(tmp_path_factory.mktemp("mxfp4"))


def test_the_numbers_are_those_of_transformers(folders: tuple[Path, Path]) -> None:
    plain, packed = (dict(HFCheckpoint(folder).tensors(FLOAT32)) for folder in folders)
    assert plain.keys() == packed.keys()
    for name, expected in plain.items():
        np.testing.assert_array_equal(packed[name], expected, err_msg=name)


def test_blocks_are_those_of_gguf(folders: tuple[Path, Path]) -> None:
    plain, packed = dict(HFCheckpoint(folders[0]).tensors(FLOAT32)), HFCheckpoint(folders[1])
    names = list(packed.quantized)
    assert len(names) == 2 * EXPERTS * 3
    for name, weight in packed.stored(names):
        assert weight.format == packed.quantized[name].block_format == "mxfp4"
        numbers = dequantize(weight.rows, GGMLQuantizationType.MXFP4)
        np.testing.assert_array_equal(numbers, plain[name], err_msg=name)


def test_the_memory_of_expansion_is_stated(folders: tuple[Path, Path]) -> None:
    packed = HFCheckpoint(folders[1])
    memory = weight_memory(packed, lambda format, width: False, 2)
    numbers = 2 * EXPERTS * 3 * HIDDEN * INNER
    assert (memory.kept, memory.expanded, memory.stored) == (0, 2 * numbers, numbers * 17 // 32)
    assert memory.notice is not None
    assert "mxfp4" in memory.notice
    file = folders[1] / "model.safetensors"
    assert packed.weight_bytes == file.stat().st_size - 8 - int.from_bytes(file.read_bytes()[:8], "little")


@pytest.mark.parametrize("kind", ["scales", "blocks"])
def test_a_missing_or_misshapen_tensor_is_named(tmp_path: Path, folders: tuple[Path, Path], kind: str) -> None:
    name = f"model.layers.1.mlp.experts.down_proj_{kind}"
    for change in ("missing", "misshapen"):
        folder = copied(folders[1], tmp_path / change)
        stored = load_file(folder / "model.safetensors")
        tensor = stored.pop(name)
        if change == "misshapen":
            stored[name] = tensor[:, :-1].contiguous()
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(
            UnsupportedCheckpoint, match=rf"tensor model\.layers\.1\.mlp\.experts\.0\.down_proj\.{kind}"
        ):
            HFCheckpoint(folder)


def test_a_scale_that_is_no_number_is_refused(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    folder = copied(folders[1], tmp_path / "model")
    stored = load_file(folder / "model.safetensors")
    stored["model.layers.0.mlp.experts.gate_up_proj_scales"][3, 1, 0] = 255
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedCheckpoint, match=r"experts\.3\.up_proj\.scales: a scale is not finite"):
        list(HFCheckpoint(folder).tensors(FLOAT32))


@pytest.mark.parametrize("key", ["group_size", "swizzle"])
def test_a_key_that_is_not_understood_is_named(tmp_path: Path, folders: tuple[Path, Path], key: str) -> None:
    folder = copied(folders[1], tmp_path / "model")
    set_keys(folder, quantization_config={"quant_method": "mxfp4", key: 16})
    with pytest.raises(UnsupportedCheckpoint, match=rf"quantization_config\.{key}"):
        HFCheckpoint(folder)


def test_another_format_of_a_multimodal_folder_is_read_by_its_own_names(
    tmp_path: Path, tiny_folder: TinyFolder
) -> None:
    folder = copied(tiny_folder("mistral3"), tmp_path / "model")
    stored = load_file(folder / "model.safetensors")
    name = "language_model.model.layers.0.mlp.down_proj.weight"
    codes = stored[name].to(torch.float8_e4m3fn)
    stored |= {name: codes, name + "_scale_inv": torch.tensor(0.5)}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    set_keys(folder, quantization_config={"quant_method": "fp8", "activation_scheme": "static"})
    checkpoint = HFCheckpoint(folder)
    assert set(checkpoint.quantized) == {"model.layers.0.mlp.down_proj.weight"}
    weights = dict(checkpoint.tensors(FLOAT32))
    np.testing.assert_array_equal(weights["model.layers.0.mlp.down_proj.weight"], codes.float().numpy() / 2)


def copied(folder: Path, target: Path) -> Path:
    target.mkdir(parents=True)
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target
