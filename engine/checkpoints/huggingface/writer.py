"""Writes a model as a Hugging Face folder, which `folder.py` reads."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from engine.checkpoints.checkpoint import Checkpoint
from engine.checkpoints.huggingface.config import config_from_json
from engine.models.config import ModelConfig, RopeConfig, UnsupportedCheckpoint
from engine.models.layout import DRAFT, FREQUENT_TOKENS
from engine.text.processor import TextProcessor
from kernels.arrays import Array

WEIGHTS = "model.safetensors"

_ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
)


def write_folder(
    folder: Path, teacher: Checkpoint, config: ModelConfig, weights: Mapping[str, Array], frequent: Array
) -> None:
    """Write a model of `config` that has its teacher's tokenizer.

    `weights`: all tensors by Hugging Face name. `frequent`: int32 [F], the tokens that the model may draft, by
    descending frequency; written to `draft.safetensors`.

    Raises:
        UnsupportedCheckpoint: the architecture cannot be expressed in config.json.
    """
    text = teacher.text_processor()
    ends = dict.fromkeys((*config.eos_token_ids, *text.tokenizer.eos_token_ids))
    description = config_json(replace(config, eos_token_ids=tuple(ends)))
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", description)
    if teacher.path.is_dir():
        _copy_tokenizer(teacher.path, folder)
    else:
        _write_tokenizer(folder, text)
    save_file(
        {name: np.ascontiguousarray(array) for name, array in weights.items()}, folder / WEIGHTS, {"format": "pt"}
    )
    save_file({FREQUENT_TOKENS: frequent.astype(np.int32, copy=False)}, folder / DRAFT)


def can_be_written(config: ModelConfig) -> bool:
    """Whether a folder can be written of a model of this family."""
    return config.family in _ARCHITECTURES and config.is_plain


def config_json(config: ModelConfig) -> dict[str, Any]:
    """The config.json that reads back as `config`.

    Raises:
        UnsupportedCheckpoint: there is none: a GGUF file may use features without a Hugging Face key in its family.
    """
    if not can_be_written(config):
        raise UnsupportedCheckpoint(f"a model of the family {config.family} cannot be written")
    sliding = {window for window in config.windows if window is not None}
    value: dict[str, Any] = {
        "model_type": config.family,
        "architectures": [_ARCHITECTURES[config.family]],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
        "max_position_embeddings": _stated_window(config),
        "rope_parameters": _rope_json(config.rope, config.head_dim),
        "sliding_window": next(iter(sliding), None),
        "torch_dtype": "bfloat16",
    }
    if config.family in ("qwen2", "qwen3"):
        kinds = ["full_attention" if window is None else "sliding_attention" for window in config.windows]
        value |= {"use_sliding_window": bool(sliding), "layer_types": kinds}
    if config_from_json(value) != config:
        raise UnsupportedCheckpoint("the teacher's arithmetic cannot be written as a Hugging Face config.json")
    return value


def _stated_window(config: ModelConfig) -> int:
    """`max_position_embeddings`: the trained context for linear and dynamic rope, the extended one for the others."""
    if config.rope.kind in ("linear", "dynamic") and config.rope.original_max_position is not None:
        return config.rope.original_max_position
    return config.max_position


def _rope_json(rope: RopeConfig, head_dim: int) -> dict[str, Any]:
    value: dict[str, Any] = {"rope_type": rope.kind, "rope_theta": rope.theta}
    if rope.rotary_dim is not None:
        value["partial_rotary_factor"] = rope.rotary_dim / head_dim
    if rope.kind != "default":
        value["factor"] = rope.factor
    if rope.kind in ("dynamic", "llama3", "yarn"):
        value["original_max_position_embeddings"] = rope.original_max_position
    if rope.kind == "llama3":
        value |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        names = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")
        value |= {name: getattr(rope, name) for name in names if getattr(rope, name) is not None}
    return value


def _copy_tokenizer(source: Path, folder: Path) -> None:
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, folder / name)


def _write_tokenizer(folder: Path, text: TextProcessor) -> None:
    """Write a tokenizer.json and tokenizer_config.json that give the same ids and the same chat prompts."""
    tokenizer = text.tokenizer
    spec = json.loads(tokenizer.to_json())
    around = tokenizer.encode("", add_special_tokens=True)
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": tokenizer.bos_token_id in around,
        "add_eos_token": tokenizer.eos_token_id in around,
        "clean_up_tokenization_spaces": False,
    }
    named = {"bos_token": tokenizer.bos_token_id, "eos_token": tokenizer.eos_token_id}
    texts = {token_id: content for content, token_id in tokenizer.special_texts.items()}
    settings |= {name: texts[token_id] for name, token_id in named.items() if token_id is not None}
    if spec["model"].get("unk_token") is not None:
        settings["unk_token"] = spec["model"]["unk_token"]
    if text.chat_template is not None:
        settings["chat_template"] = _template_json(text.chat_template.source, text.chat_template.tool_source)
    (folder / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", settings)


def _template_json(source: str, tool_source: str | None) -> str | list[dict[str, str]]:
    if tool_source is None:
        return source
    return [{"name": "default", "template": source}, {"name": "tool_use", "template": tool_source}]


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
