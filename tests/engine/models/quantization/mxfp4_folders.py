"""Folders of gpt-oss whose experts are in MXFP4."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.support.tiny_models import make_checkpoint

EXPERTS, HIDDEN, INNER = 8, 64, 96
SHAPES = {"gate_up_proj": (EXPERTS, 2 * INNER, HIDDEN // 32), "down_proj": (EXPERTS, HIDDEN, INNER // 32)}


def write_folders(root: Path) -> tuple[Path, Path]:
    """A folder with the numbers that transformers reads from one in MXFP4, and that one."""
    plain = make_checkpoint(root / "plain", "gpt_oss", hidden_size=HIDDEN, intermediate_size=INNER)
    packed = make_checkpoint(root / "packed", "gpt_oss", hidden_size=HIDDEN, intermediate_size=INNER)
    floats, stored = load_file(plain / "model.safetensors"), load_file(packed / "model.safetensors")
    random = np.random.default_rng(3)
    for name in [name for name in stored if name.endswith(tuple(SHAPES))]:
        shape = SHAPES[name.rpartition(".")[2]]
        blocks = torch.from_numpy(random.integers(0, 256, (*shape, 16), np.uint8))
        scales = torch.from_numpy(random.integers(118, 124, shape, np.uint8))
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        del stored[name]
        floats[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    save_file(floats, plain / "model.safetensors", {"format": "pt"})
    save_file(stored, packed / "model.safetensors", {"format": "pt"})
    set_keys(packed, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    return plain, packed


def set_keys(folder: Path, **keys: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | keys))
