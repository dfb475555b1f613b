"""Quantised copies of tiny checkpoints, in every layout that is read."""

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from kernels.arrays import Array, Floats
from tests.engine.models.quantization import packing

_LINEAR = re.compile(r"(_proj(_\w+)?|\.w[123]|_projection|per_layer_input_gate)\.weight$")
_STACKED = re.compile(r"(.*\.experts)\.(gate_up|down)_proj")
Quantized = tuple[Mapping[str, Array], Floats]
"""A layer's tensors by suffix, and the weight that they stand for."""


@dataclass(frozen=True)
class Case:
    """A quantised checkpoint. quantize: of one weight. block_format: what its matrices of 256 inputs are kept in.
    plain: parts of the names of modules that stay plain. head: whether the head is quantised. rounds: whether products
    round their inputs."""

    name: str
    config: Mapping[str, Any]
    quantize: Callable[[Floats], Quantized]
    block_format: str | None
    head: bool = False
    plain: tuple[str, ...] = ()
    extra: Mapping[str, Array] = field(default_factory=dict)
    rounds: bool = False


def write(folder: Path, source: Path, case: Case) -> dict[str, Floats]:
    """Write the source quantised as the case says. The weights that it stands for, by name."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": dict(case.config)}))
    tensors: dict[str, Array] = {}
    floats: dict[str, Floats] = {}
    for name, weight in _by_expert(load_file(source / "model.safetensors")):
        linear = _LINEAR.search(name) is not None or (case.head and name == "lm_head.weight")
        if not linear or any(part in name for part in case.plain):
            tensors[name] = floats[name] = weight
            continue
        stored, floats[name] = case.quantize(weight)
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.{suffix}": np.ascontiguousarray(tensor) for suffix, tensor in stored.items()}
    save_file(tensors | dict(case.extra), folder / "model.safetensors", {"format": "pt"})
    return floats


def _by_expert(tensors: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """The tensors, with a matrix for each of the experts that transformers stacks: no format has matrices of them
    all."""
    for name, tensor in tensors.items():
        match = _STACKED.fullmatch(name)
        if match is None:
            yield name, tensor
            continue
        for expert, matrix in enumerate(tensor):
            halves = {"gate_proj": len(matrix) // 2, "up_proj": len(matrix)} if match[2] == "gate_up" else {}
            first = 0
            for module, last in (halves or {"down_proj": len(matrix)}).items():
                yield f"{match[1]}.{expert}.{module}.weight", np.ascontiguousarray(matrix[first:last])
                first = last


def _gptq(bits: int, group_size: int, *, sym: bool, version: str = "gptq", **options: Any) -> Case:
    desc_act, head, plain = (
        options.pop(name, default) for name, default in (("desc_act", False), ("head", False), ("plain", ()))
    )
    keys = options | {"lm_head": head, "desc_act": desc_act}

    def quantize(weight: Floats) -> Quantized:
        permute = 7 if desc_act else None
        integers = packing.rounded(weight, bits, group_size, symmetric=sym, permute=permute)
        return packing.gptq(integers, version=version), integers.floats()

    config = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "sym": sym, "checkpoint_format": version}
    name = f"gptq-{bits}-{group_size}-{version}-{'sym' if sym else 'asym'}{'-desc' if desc_act else ''}"
    size = 128 if group_size in (-1, 128) else group_size
    return Case(name, config | keys, quantize, None if desc_act else f"u{bits}_{size}", head, plain)


def _awq(group_size: int) -> Case:
    def quantize(weight: Floats) -> Quantized:
        integers = packing.rounded(weight, 4, group_size, symmetric=False)
        return packing.awq(integers), integers.floats()

    config = {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}
    return Case(f"awq-{group_size}", config | {"modules_to_not_convert": None}, quantize, f"u4_{group_size}")


def compressed(form: str, weights: Mapping[str, Any], **group: Any) -> dict[str, Any]:
    """A config of compressed-tensors with one group for all linear layers but the head."""
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": dict(weights), **group}},
    }


def _packed(bits: int, group_size: int, *, symmetric: bool, index: bool = False) -> Case:
    def quantize(weight: Floats) -> Quantized:
        integers = packing.rounded(
            weight, bits, group_size, symmetric=symmetric, scale_type=ml_dtypes.bfloat16, permute=3 if index else None
        )
        return packing.pack_quantized(integers, symmetric=symmetric, index=index), integers.floats()

    strategy = {"strategy": "channel"} if group_size == -1 else {"strategy": "group", "group_size": group_size}
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, **strategy}
    if index:
        weights["actorder"] = "group"
    name = f"pack-{bits}-{group_size}-{'sym' if symmetric else 'asym'}{'-index' if index else ''}"
    size = 128 if group_size in (-1, 128) else group_size
    return Case(name, compressed("pack-quantized", weights), quantize, None if index else f"u{bits}_{size}")


def _int8(*, symmetric: bool, static: bool = False, input_scale: float | None = None) -> Case:
    """static: whether inputs have one scale, which is stored if it is given."""

    def quantize(weight: Floats) -> Quantized:
        integers = packing.rounded(weight, 8, -1, symmetric=symmetric, scale_type=np.float32)
        tensors = packing.int_quantized(integers, symmetric=symmetric)
        if input_scale is not None:
            tensors["input_scale"] = np.array([input_scale], np.float32)
        return tensors, integers.floats()

    weights = {"num_bits": 8, "type": "int", "symmetric": symmetric, "strategy": "channel"}
    activations = {"num_bits": 8, "type": "int", "strategy": "tensor" if static else "token", "dynamic": not static}
    config = compressed("int-quantized", weights, input_activations=activations)
    name = f"int8-{'sym' if symmetric else 'asym'}{'-static' if static else ''}"
    name += "" if input_scale is None else f"-{input_scale}"
    rounds = symmetric and (not static or (input_scale is not None and 0 < input_scale < np.inf))
    return Case(name, config, quantize, "u8_128", rounds=rounds)


def _float8(strategy: str) -> Case:
    block = (128, 128) if strategy == "block" else None

    def quantize(weight: Floats) -> Quantized:
        codes, scales, floats = packing.float8(weight, weight.shape if strategy == "tensor" else block)
        return {"weight": codes, "weight_scale": scales.reshape(-1) if strategy == "tensor" else scales}, floats

    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "block_structure": list(block) if block else None}
    return Case(f"float8-{strategy}", compressed("float-quantized", weights), quantize, "e4m3_128")


def _mxfp4() -> Case:
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    return Case("mxfp4", compressed("mxfp4-pack-quantized", weights), packing.mxfp4, "mxfp4")


def _fp8(block: tuple[int, int] | None) -> Case:
    def quantize(weight: Floats) -> Quantized:
        codes, scales, floats = packing.float8(weight, block or weight.shape)
        return {"weight": codes, "weight_scale_inv": scales if block else scales.reshape(())}, floats

    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}
    blocks = "e4m3_32" if block == (96, 160) else "e4m3_128"
    return Case(f"fp8-{block}", config | {"weight_block_size": list(block) if block else None}, quantize, blocks)


def _nf4(*, nested: bool) -> Case:
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    config |= {"bnb_4bit_use_double_quant": nested, "llm_int8_skip_modules": ["lm_head"]}
    name = f"nf4{'-nested' if nested else ''}"
    return Case(name, config, lambda weight: packing.nf4(weight, nested=nested), None)


LAYERS = [["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"], ["mlp.up_proj", "mlp.gate_proj"]]
CASES = (
    *(_gptq(4, 128, sym=sym, version=version) for sym in (True, False) for version in ("gptq", "gptq_v2")),
    _gptq(4, 32, sym=True),
    _gptq(4, 64, sym=False, desc_act=True),
    _gptq(4, -1, sym=True, desc_act=False),
    _gptq(8, 64, sym=True, head=True),
    _gptq(8, 32, sym=False),
    _gptq(4, 64, sym=True, modules_in_block_to_quantize=LAYERS, plain=("o_proj", "down_proj"), version="gptq_v2"),
    _awq(128),
    _awq(32),
    *(_packed(4, size, symmetric=symmetric) for size in (32, 128) for symmetric in (True, False)),
    _packed(8, -1, symmetric=True),
    _packed(8, 128, symmetric=False),
    _packed(4, 64, symmetric=True, index=True),
    _int8(symmetric=True),
    _int8(symmetric=False),
    _int8(symmetric=True, static=True),
    _int8(symmetric=False, static=True, input_scale=0.04),
    *(_int8(symmetric=True, static=True, input_scale=scale) for scale in (0.04, 0.0, math.inf)),
    *(_float8(strategy) for strategy in ("tensor", "channel", "block")),
    _fp8((128, 128)),
    _fp8((96, 160)),
    _fp8(None),
    _mxfp4(),
    _nf4(nested=False),
    _nf4(nested=True),
)
