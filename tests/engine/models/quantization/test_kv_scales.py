"""Scales of KV in 8-bit floats: read, checked, and passed on to the layers."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from engine.checkpoints.checkpoint import open_checkpoint
from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.models.config import UnsupportedCheckpoint
from engine.models.loader import load_model
from engine.models.transformer import Transformer
from kernels.arrays import Array
from kernels.dispatch import select_ops
from kernels.reference_ops import ReferenceOps
from kernels.weights import KVScales
from tests.engine.models.quantization.folders import CASES, Case, write
from tests.support.host_logits import logits_of
from tests.support.tiny_models import TinyFolder

SHAPE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32, "num_hidden_layers": 3}
SCHEME = {
    "num_bits": 8,
    "type": "float",
    "strategy": "tensor",
    "dynamic": False,
    "symmetric": True,
    "observer": "minmax",
}
CASE = next(case for case in CASES if case.name == "pack-8-128-asym")
FP8 = next(case for case in CASES if case.name == "fp8-(128, 128)")
KEY, VALUE = "model.layers.1.self_attn.k_scale", "model.layers.1.self_attn.v_scale"


def scale(number: float, dtype: Any = np.float32) -> Array:
    return np.array([number], dtype)


def folder(
    path: Path, tiny_folder: TinyFolder, extra: Mapping[str, Array], scheme: Any = SCHEME, case: Case = CASE
) -> Path:
    config = case.config if case is FP8 else {**case.config, "kv_cache_scheme": scheme}
    write(path, tiny_folder("llama", **SHAPE), replace(case, config=config, extra=extra))
    return path


def test_scales_of_layers(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    """A scale that a layer lacks is 1; a layer without any has none."""
    extra = {
        KEY: scale(0.25),
        VALUE: np.array(0.5, ml_dtypes.bfloat16),
        "model.layers.2.self_attn.v_scale": scale(3, np.float16),
    }
    checkpoint = HFCheckpoint(folder(tmp_path / "scales", tiny_folder, extra))
    assert checkpoint.kv_scales == {1: KVScales(0.25, 0.5), 2: KVScales(1.0, 3.0)}


def test_older_names(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    extra = {f"model.layers.0.self_attn.{kind}_proj.output_scale": scale(size) for kind, size in (("k", 2), ("v", 4))}
    assert HFCheckpoint(folder(tmp_path / "old", tiny_folder, extra)).kv_scales == {0: KVScales(2.0, 4.0)}


def test_scales_of_fp8_checkpoints(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    extra = {KEY: scale(0.25), VALUE: scale(0.5)}
    assert HFCheckpoint(folder(tmp_path / "fp8", tiny_folder, extra, case=FP8)).kv_scales == {1: KVScales(0.25, 0.5)}


def test_a_scheme_without_scales(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    assert HFCheckpoint(folder(tmp_path / "none", tiny_folder, {})).kv_scales == {}


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({KEY: scale(0)}, "0.0 is not a positive, finite scale"),
        ({KEY: scale(-1)}, "-1.0 is not a positive, finite scale"),
        ({KEY: scale(np.nan)}, "nan is not a positive, finite scale"),
        ({KEY: scale(np.inf)}, "inf is not a positive, finite scale"),
        ({KEY: np.ones(2, np.float32)}, r"has shape \[2\], not \[1\]"),
        ({KEY: np.ones((4, 1, 1), np.float32)}, r"has shape \[4, 1, 1\], not \[1\]"),
        ({KEY: np.ones(1, np.int8)}, "has type I8, not one of F16, BF16, F32"),
        (
            {KEY: scale(1), "model.layers.1.self_attn.k_proj.output_scale": scale(1)},
            "k_proj.output_scale is in the file",
        ),
    ],
)
def test_bad_scales_are_refused_by_name(
    extra: Mapping[str, Array], why: str, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=why) as error:
        HFCheckpoint(folder(tmp_path / "bad", tiny_folder, extra))
    assert KEY in str(error.value)


def test_scales_of_no_layer_are_not_understood(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"tensor model\.layers\.3\.self_attn\.k_scale is not understood"):
        HFCheckpoint(folder(tmp_path / "far", tiny_folder, {"model.layers.3.self_attn.k_scale": scale(1)}))


@pytest.mark.parametrize(
    "change",
    [
        {"num_bits": 4},
        {"type": "int"},
        {"strategy": "attn_head"},
        {"dynamic": True},
        {"symmetric": False},
        {"colour": 1},
    ],
    ids=str,
)
def test_other_schemes_are_refused(change: Mapping[str, Any], tiny_folder: TinyFolder, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"quantization_config\.kv_cache_scheme"):
        HFCheckpoint(folder(tmp_path / "other", tiny_folder, {}, SCHEME | dict(change)))


def test_layers_have_their_scales(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder(tmp_path / "layers", tiny_folder, {KEY: scale(0.25), VALUE: scale(0.5)}))
    model = load_model(checkpoint, ReferenceOps(torch.device("cpu"), torch.float32), 64)
    assert isinstance(model, Transformer)
    assert [layer.kv_scales for layer in model._weights.layers] == [None, KVScales(0.25, 0.5), None]


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_a_cpu_does_not_need_them(kv_dtype: Any, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    """Keys and values of a size that the scales would cut off are kept."""
    ops = select_ops("bfloat16", threads=1, device="cpu", kv_dtype=kv_dtype)
    tiny = {KEY: scale(1e-6), VALUE: scale(1e-6)}
    with_scales, without = (
        logits_of(load_model(open_checkpoint(folder(tmp_path / name, tiny_folder, extra)), ops, 64))
        for name, extra in (("with", tiny), ("without", {}))
    )
    assert np.array_equal(with_scales, without)
