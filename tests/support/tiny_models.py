"""Makes tiny checkpoints with random weights, one for every family that the engine serves.

They are written by transformers' own classes, so that a test can compare with transformers on one folder.
Biases and norm weights are random too: zeros and ones would hide a forgotten bias or norm.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from tests.support.tiny_families import CONFIGS, MULTIMODAL, SHAPE, WITHOUT_HEAD_DIM, TinyFamily
from tests.support.tiny_tokenizer import write_tokenizer

disable_progress_bar()

TinyFolder = Callable[..., Path]


def make_checkpoint(
    folder: Path,
    family: TinyFamily,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    **overrides: Any,
) -> Path:
    """Write a checkpoint of `family` into `folder` (created) and return the folder.

    `overrides` are keys of the family's transformers config. `max_shard_size` such as "64KB" splits the
    weights over several files with an index.
    """
    config_class, settings = CONFIGS[family]
    shape = {key: value for key, value in SHAPE.items() if key != "head_dim" or family not in WITHOUT_HEAD_DIM}
    keys = {**shape, **settings, **overrides}
    if family in MULTIMODAL:
        outer = {name: keys[name] for name in ("vision_config", "tie_word_embeddings") if name in keys}
        outer |= {name: keys[name] for name in ("bos_token_id", "eos_token_id")}
        keys = {"text_config": {name: value for name, value in keys.items() if name != "vision_config"}, **outer}
    config = config_class(**keys)
    auto = AutoModelForImageTextToText if family in MULTIMODAL else AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    _randomise(model, seed)
    folder.mkdir(parents=True, exist_ok=True)
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    write_tokenizer(folder)
    return folder


def reference_model(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """transformers' own model of a folder, in evaluation mode, with eager attention: the oracle of logits."""
    multimodal = "vision_config" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    auto = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
    model: PreTrainedModel = auto.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", local_files_only=True
    )
    return model.eval()


def reference_text(model: PreTrainedModel, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """The `new_tokens` token ids that transformers' model generates greedily after a prompt, whatever they are."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        eos_token_id=None,
        pad_token_id=0,
    )
    text: list[int] = output[0, len(prompt) :].tolist()
    return text


def _randomise(model: PreTrainedModel, seed: int) -> None:
    """Weights large enough that logits differ clearly between tokens and positions."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        kinds = ("e_score_correction_bias", "layer_scalar")
        buffers = [each for each in model.named_buffers() if each[0].endswith(kinds)]
        for name, parameter in [*model.named_parameters(), *buffers]:
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("linear_attn.norm.weight"):
                parameter.copy_(1.0 + 0.2 * noise)
            elif name.endswith(("norm.weight", "norm_1.weight", "norm_2.weight")):
                parameter.copy_(_mean_of_norms(model) + 0.2 * noise)
            elif name.endswith(("A_log", "dt_bias")):
                parameter.copy_(noise - 1.0)  # a memory of some tens of tokens
            elif name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
                parameter.copy_(1.0 + 0.2 * noise)
            elif name.endswith((".gate.weight", "router.weight", "router.proj.weight")):
                parameter.copy_(3 * noise * parameter.shape[-1] ** -0.5)  # few near ties between experts
            elif name.endswith(".sinks"):
                parameter.copy_(1 + noise)
            elif name.endswith(("bias",)):
                parameter.copy_(0.2 * noise)
            elif name.endswith(".experts.gate_up_proj") and model.config.model_type == "gpt_oss":
                parameter.copy_(4 * noise * parameter.shape[-2] ** -0.5)  # beyond the limits of its activation
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)


def _mean_of_norms(model: PreTrainedModel) -> float:
    """The norms of Gemma 2 and 3, and of hybrid models, multiply by 1 plus their weight."""
    return 0.0 if model.config.model_type.startswith(("gemma2", "gemma3", "qwen3_5", "qwen3_next")) else 1.0
