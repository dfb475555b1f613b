"""Writes `data/`: tiny checkpoints in formats of other projects, by those projects' own code, with what they mean.

    pip install compressed-tensors==0.20.0 gptqmodel==7.7.0 torch transformers
    python -m tests.engine.models.quantization.write_goldens compressed-tensors  (or gptqmodel)

The packages are not needed to run the tests. Each folder has config.json, model.safetensors and expected.safetensors:
token ids, the logits that transformers computes in float32 from the weights as the package expands them, and two of
these weights.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

DATA = Path(__file__).with_name("data")
SAMPLED = ("model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.down_proj.weight")
_SHAPE: Mapping[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(11)
    model = LlamaForCausalLM(LlamaConfig(**_SHAPE)).to(torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(1)
    return model


def write(
    name: str, tensors: Mapping[str, torch.Tensor], quantization: Mapping[str, Any], floats: LlamaForCausalLM
) -> None:
    """`floats`: the model with the weights that the tensors stand for."""
    folder = DATA / name
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads(LlamaConfig(**_SHAPE, architectures=["LlamaForCausalLM"]).to_json_string())
    config |= {"dtype": "bfloat16", "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "model.safetensors")
    floats = floats.float()
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.inference_mode():
        logits = floats(tokens).logits[0]
    weights = dict(floats.named_parameters())
    expected = {name: weights[name].detach().float().contiguous() for name in SAMPLED}
    save_file({"tokens": tokens[0], "logits": logits.contiguous(), **expected}, folder / "expected.safetensors")


def compressed_tensors() -> None:
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, apply_quantization_config
    from compressed_tensors.quantization.utils import calculate_qparams

    for preset, targets in {
        "W4A16": ["Linear"],
        "W4A16_ASYM": ["re:.*self_attn\\..*_proj", "model.layers.0.mlp.down_proj"],
        "W8A16": ["Linear"],
        "W8A8": ["Linear"],
        "FP8": ["Linear"],
        "FP8_DYNAMIC": ["Linear"],
        "FP8_BLOCK": ["Linear"],
    }.items():
        model = tiny_model()
        config = QuantizationConfig(config_groups={preset: targets}, ignore=["lm_head"])
        apply_quantization_config(model, config)
        for module in model.modules():
            scheme = getattr(module, "quantization_scheme", None)
            if scheme is None or scheme.weights is None:
                continue
            arguments, weight = scheme.weights, module.weight.detach().float()
            low, high = _ranges(weight, arguments)
            scale, zero = calculate_qparams(low, high, arguments)
            module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
            if hasattr(module, "weight_zero_point"):
                module.weight_zero_point.data.copy_(zero.reshape(module.weight_zero_point.shape))
            if hasattr(module, "input_scale"):
                module.input_scale.data.fill_(0.01)
            module.quantization_status = QuantizationStatus.FROZEN
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        tensors = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        folder = DATA / preset.lower().replace("_", "-")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        compressor.update_config(str(folder))
        stated = json.loads((folder / "config.json").read_text())["quantization_config"]
        compressor.decompress_model(model)
        floats = tiny_model().float()
        floats.load_state_dict({key: value.float() for key, value in model.state_dict().items()}, strict=False)
        write(folder.name, tensors, stated, floats)


def gptqmodel() -> None:
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
    from gptqmodel.quantization import FORMAT, QuantizeConfig
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    for name, bits, group_size, sym, desc_act, version in (
        ("gptq-sym", 4, 128, True, False, FORMAT.GPTQ),
        ("gptq-asym", 4, 32, False, False, FORMAT.GPTQ),
        ("gptq-v2-asym-desc-act", 4, 64, False, True, FORMAT.GPTQ_V2),
        ("gptq-8-bits", 8, 128, True, False, FORMAT.GPTQ),
    ):
        config = QuantizeConfig(bits=bits, group_size=group_size, sym=sym, desc_act=desc_act, format=version)

        def pack(
            linear: torch.nn.Linear,
            bits: int = bits,
            group_size: int = group_size,
            sym: bool = sym,
            desc_act: bool = desc_act,
            version: FORMAT = version,
            config: QuantizeConfig = config,
        ) -> tuple[Mapping[str, torch.Tensor], torch.Tensor]:
            out_features, in_features = linear.weight.shape
            module = TorchLinear(bits, group_size, sym, desc_act, in_features, out_features, register_buffers=True)
            groups = torch.arange(in_features) // group_size
            if desc_act:
                groups = groups[torch.randperm(in_features, generator=torch.Generator().manual_seed(5))]
            scales, zeros = _grid(linear.weight, groups, bits, sym)
            module.pack_original(linear, scales, zeros, groups.int())
            module.eval()
            weight = module.dequantize_weight().T.clone()
            if version == FORMAT.GPTQ:
                convert_gptq_v2_to_v1_format_module(module, config)
            names = ("qweight", "qzeros", "scales", "g_idx")
            return {key: getattr(module, key).clone() for key in names}, weight

        _write_packed(name, pack, config.to_dict())

    def pack_awq(linear: torch.nn.Linear) -> tuple[Mapping[str, torch.Tensor], torch.Tensor]:
        out_features, in_features = linear.weight.shape
        module = AwqTorchLinear(4, 64, False, False, in_features, out_features, register_buffers=True)
        scales, zeros = _grid(linear.weight, torch.arange(in_features) // 64, 4, False)
        module.pack(linear, scales, zeros)
        module.eval()
        weight = module(torch.eye(in_features, dtype=torch.float16)).T.clone()
        return {key: getattr(module, key).clone() for key in ("qweight", "qzeros", "scales")}, weight

    config = QuantizeConfig(quant_method="awq", bits=4, group_size=64, sym=False, format=FORMAT.GEMM)
    _write_packed("awq", pack_awq, config.to_dict())


def _write_packed(
    name: str,
    pack: Callable[[torch.nn.Linear], tuple[Mapping[str, torch.Tensor], torch.Tensor]],
    quantization: Mapping[str, Any],
) -> None:
    model, floats = tiny_model().half(), tiny_model().float()
    tensors = {}
    modules = dict(model.named_modules())
    for key, tensor in model.state_dict().items():
        module = key.removesuffix(".weight")
        if not key.endswith("_proj.weight"):
            tensors[key] = tensor
            floats.get_parameter(key).data.copy_(tensor)
            continue
        packed, weight = pack(modules[module])
        tensors |= {f"{module}.{suffix}": value for suffix, value in packed.items()}
        floats.get_parameter(key).data.copy_(weight)
    stated = json.loads(json.dumps(quantization, default=str))
    stated.get("meta", {}).pop("offload_to_disk_path", None)
    write(name, tensors, stated, floats)


def _grid(
    weight: torch.Tensor, group_of: torch.Tensor, bits: int, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points [out, groups] of the weight."""
    most = (1 << bits) - 1
    scales, zeros = [], []
    for group in range(int(group_of.max()) + 1):
        part = weight.detach().float()[:, group_of == group]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        scale = 2 * part.abs().amax(1) / most if symmetric else (high - low) / most
        scale = scale.half().float()
        scales.append(scale)
        zeros.append(torch.full_like(scale, (most + 1) // 2) if symmetric else (-low / scale).round().clamp(0, most))
    return torch.stack(scales, 1), torch.stack(zeros, 1)


def _ranges(weight: torch.Tensor, arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest number of each group of the weight."""
    match arguments.strategy:
        case "tensor":
            groups = weight.reshape(1, -1)
        case "channel":
            groups = weight.reshape(len(weight), 1, -1)
        case "group":
            groups = weight.reshape(len(weight), -1, arguments.group_size)
        case _:
            rows, columns = arguments.block_structure
            height, width = weight.shape
            whole = torch.nn.functional.pad(weight, (0, -width % columns, 0, -height % rows))
            groups = whole.reshape(-(-height // rows), rows, -1, columns).transpose(1, 2).flatten(2)
    return groups.amin(-1), groups.amax(-1)


if __name__ == "__main__":
    {"compressed-tensors": compressed_tensors, "gptqmodel": gptqmodel}[sys.argv[1]]()
