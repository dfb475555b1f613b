"""The random weights of `models` in published formats of fewer bits: folders as compressed-tensors writes them."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

GROUP_INPUTS = 128
_PER_WORD = 8
Tensors = Mapping[str, torch.Tensor]


def w4a16(weight: torch.Tensor) -> Tensors:
    """`pack-quantized`: symmetric integers of 4 bits [out, in] with a scale for each group, eight in an int32."""
    by_group = weight.float().reshape(len(weight), -1, GROUP_INPUTS)
    scales = by_group.abs().amax(2) / 7
    codes = (by_group / scales[..., None]).round().clamp(-8, 7).to(torch.int64) + 8
    places = codes.reshape(len(weight), -1, _PER_WORD) << torch.arange(0, 32, 4)
    words = places.sum(2)
    return {
        "weight_packed": (words - (words >> 31 << 32)).to(torch.int32),
        "weight_scale": scales.to(torch.bfloat16),
        "weight_shape": torch.tensor(weight.shape),
    }


def w8a8(weight: torch.Tensor) -> Tensors:
    """`int-quantized`: symmetric bytes [out, in] with a scale for each output."""
    numbers = weight.float()
    scales = numbers.abs().amax(1, keepdim=True) / 127
    return {"weight": (numbers / scales).round().to(torch.int8), "weight_scale": scales.to(torch.bfloat16)}


def _group(kind: str, bits: int, activations: Mapping[str, Any] | None, **options: Any) -> Mapping[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "dynamic": False, **options}
    targets = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": targets},
    }


_TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
W4A16, W8A8 = "W4A16", "W8A8"
_FORMATS: Mapping[str, tuple[Mapping[str, Any], Callable[[torch.Tensor], Tensors]]] = {
    W4A16: (_group("pack-quantized", 4, None, strategy="group", group_size=GROUP_INPUTS), w4a16),
    W8A8: (_group("int-quantized", 8, _TOKENS, strategy="channel"), w8a8),
}


def prepare(source: Path, name: str) -> Path:
    """The folder of `source`'s weights in the format, made where it is missing. Head and embedding stay in bf16, as in
    what is published."""
    config, quantize = _FORMATS[name]
    folder = source.with_name(f"{source.name}-{name}")
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    for stored, weight in load_file(source / "model.safetensors").items():
        if not stored.endswith("_proj.weight"):
            tensors[stored] = weight
            continue
        module = stored.removesuffix(".weight")
        tensors |= {f"{module}.{suffix}": part.contiguous() for suffix, part in quantize(weight).items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / file, folder / file)
    stated = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(stated | {"quantization_config": config}), encoding="utf-8")
    return folder
