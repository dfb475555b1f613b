"""PEFT folders of a tiny model, written without PEFT."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from engine.adapters.folder import WEIGHTS
from engine.adapters.peft_config import CONFIG
from kernels.arrays import Array

GOOD: Mapping[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
RANK, HIDDEN = 4, 64
PREFIX = "base_model.model.model.layers.0.self_attn."


def tensors(q_rows: int, kv_rows: int) -> dict[str, Array]:
    """Of the queries and values of layer 0."""
    numbers = np.random.default_rng(0)
    shapes = {"q_proj": q_rows, "v_proj": kv_rows}
    return {
        f"{PREFIX}{module}.lora_{kind}.weight": numbers.standard_normal(shape).astype(np.float32)
        for module, rows in shapes.items()
        for kind, shape in (("A", (RANK, HIDDEN)), ("B", (rows, RANK)))
    }


def write(folder: Path, weights: Mapping[str, Array], config: Mapping[str, Any] = GOOD) -> Path:
    """Write the two files."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(weights), folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    return folder
