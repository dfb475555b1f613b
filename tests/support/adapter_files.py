"""Writes small PEFT folders for a tiny Llama without PEFT, good ones and with changes."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

RANK = 4
ATTENTION = "base_model.model.model.layers.0.self_attn"
DOWN, UP = f"{ATTENTION}.q_proj.lora_A.weight", f"{ATTENTION}.q_proj.lora_B.weight"
HIDDEN, KV_OUTPUTS, FFN = 64, 32, 96
CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "base_model_name_or_path": "tiny"}

Tensors = dict[str, npt.NDArray[Any]]


def pair(module: str, inputs: int, outputs: int, rank: int = RANK, seed: int = 0) -> Tensors:
    """The two matrices of a module, by its name in the base model, in float32."""
    rng = np.random.default_rng(seed)
    return {
        f"base_model.model.{module}.lora_A.weight": rng.standard_normal((rank, inputs), np.float32),
        f"base_model.model.{module}.lora_B.weight": rng.standard_normal((outputs, rank), np.float32),
    }


def query(rank: int = RANK) -> Tensors:
    """The matrices `DOWN` and `UP`."""
    return pair("model.layers.0.self_attn.q_proj", HIDDEN, HIDDEN, rank)


def write_adapter(folder: Path, tensors: Tensors | None = None, **config: Any) -> Path:
    """Write `tensors` (those of `query` without any) and a config with the given keys changed; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}), encoding="utf-8")
    save_file(query() if tensors is None else tensors, folder / "adapter_model.safetensors")
    return folder


def as_bfloat16(tensors: Tensors) -> Tensors:
    """The same rounded."""
    return {name: numbers.astype(ml_dtypes.bfloat16) for name, numbers in tensors.items()}
