"""PEFT folders of small random numbers, for measurements."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from engine.adapters.folder import WEIGHTS, digest_of
from engine.adapters.peft_config import CONFIG
from engine.adapters.source import AdapterSource
from engine.models.config import ModelConfig
from engine.models.layout import layer_tensors

Modules = tuple[int, tuple[str, ...]]
"""A rank, and the ends of the names of the modules that are changed."""
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SETS: Mapping[str, Modules] = {"rank 8 on q, v": (8, ("q_proj", "v_proj")), "rank 16 on all linears": (16, LINEARS)}


def make_adapter(folder: Path, config: ModelConfig, modules: Modules, seed: int) -> AdapterSource:
    """Write an adapter of a model with Llama's names."""
    rank, targets = modules
    numbers = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config.num_layers):
        for name, shape in layer_tensors(config, layer):
            module = name.removesuffix(".weight")
            if module.endswith(targets):
                prefix = f"base_model.model.model.layers.{layer}.{module}"
                for kind, size in (("A", (rank, shape[1])), ("B", (shape[0], rank))):
                    tensors[f"{prefix}.lora_{kind}.weight"] = 0.01 * numbers.standard_normal(size, np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / WEIGHTS)
    stated = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(targets), "bias": "none"}
    (folder / CONFIG).write_text(json.dumps(stated), encoding="utf-8")
    return AdapterSource(digest_of(folder), folder)
