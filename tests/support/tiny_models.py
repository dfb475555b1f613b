"""Makes tiny checkpoints with random weights, one for every family that the engine serves.

They are written by transformers' own classes, so that a test can compare with transformers on one folder.
Biases and norm weights are random too: zeros and ones would hide a forgotten bias or norm.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    DeepseekV2Config,
    DeepseekV3Config,
    Exaone4Config,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    Glm4Config,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MiniMaxM2Config,
    Mistral3Config,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoeConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
    SmolLM3Config,
)
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()

TinyFamily = Literal[
    "llama",
    "llama3",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "granite",
    "smollm3",
    "olmo2",
    "olmo3",
    "exaone4",
    "glm4",
    "gemma2",
    "gemma3",
    "qwen3_moe",
    "qwen2_moe",
    "olmoe",
    "mixtral",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "mistral3",
    "gemma3_images",
    "gpt_oss",
    "glm4_moe",
    "minimax_m2",
    "deepseek_v2",
    "deepseek_v2_lite",
    "deepseek_v3",
    "glm4_moe_lite",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
]
FAMILIES: tuple[TinyFamily, ...] = get_args(TinyFamily)
PLAIN_FAMILIES: tuple[TinyFamily, ...] = ("llama", "llama3", "mistral", "qwen2", "qwen3")
"""Those of the Llama architecture, which every backend computes in every format, and which can be distilled."""
HYBRID_FAMILIES: tuple[TinyFamily, ...] = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
"""Those with recurrent layers."""

VOCAB_SIZE = 512
END_OF_TEXT, IM_START, IM_END = 0, 1, 2
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_CORPUS = (
    "The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs.",
    "A queue is a data structure that keeps items in the order in which they arrived.",
    "system user assistant You are a helpful assistant. What is the capital of France? Paris.",
    "def add(left: int, right: int) -> int:\n    return left + right\n",
    '{"name": "value", "items": [1, 2, 3], "ok": true, "nothing": null}',
)

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": IM_START,
    "eos_token_id": IM_END,
    "pad_token_id": IM_END,
}

_HYBRID = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
}
"""Three layers with a state to one with attention."""

_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}

_GROUPED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "n_group": 4} | {
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
}
"""Experts in groups, after a layer without."""

_LATENT = {"num_key_value_heads": 4, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8} | {
    "v_head_dim": 12,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "mscale": 0.9,
        "mscale_all_dim": 0.7,
    },
}
"""Latent attention."""

_MULTIMODAL = {"qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "mistral3", "gemma3_images"}
"""Families whose settings are those of their text model, but for `vision_config`, and for keys that both have."""

_THREE_AXES = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "depth": 1, "out_hidden_size": 64}
_QWEN3_VISION = _VISION | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
_OTHER_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1} | {
    "image_size": 28,
    "patch_size": 14,
}

_WITHOUT_HEAD_DIM = {
    "qwen2",
    "phi3",
    "granite",
    "olmo2",
    "olmo3",
    "qwen2_moe",
    "olmoe",
    "smollm3",
    "qwen2_5_vl",
    "deepseek_v2",
    "deepseek_v2_lite",
    "deepseek_v3",
    "glm4_moe_lite",
}
"""Families whose head size is the hidden size over the heads, without a key of its own."""

_FAMILY: dict[TinyFamily, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}),
    "llama3": (
        LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral": (MistralConfig, {"sliding_window": 8, "num_hidden_layers": 3}),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, {"tie_word_embeddings": True, "head_dim": 32}),
    "phi3": (
        Phi3Config,
        {
            "sliding_window": 24,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0 + 0.1 * pair for pair in range(6)],
                "long_factor": [1.5 + 0.7 * pair for pair in range(6)],
                "original_max_position_embeddings": 512,
            },
            "original_max_position_embeddings": 512,
        },
    ),
    "granite": (
        GraniteConfig,
        {
            "attention_multiplier": 0.3,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 0.5,
            "tie_word_embeddings": True,
        },
    ),
    "smollm3": (SmolLM3Config, {"num_hidden_layers": 4, "attention_bias": True, "mlp_bias": True}),
    "olmo2": (Olmo2Config, {}),
    "olmo3": (Olmo3Config, {"num_hidden_layers": 4, "sliding_window": 8}),
    "exaone4": (Exaone4Config, {"num_hidden_layers": 4, "sliding_window": 8, "tie_word_embeddings": True}),
    "glm4": (Glm4Config, {"eos_token_id": [IM_END]}),
    "gemma2": (
        Gemma2Config,
        {
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        Gemma3TextConfig,
        {
            "num_hidden_layers": 6,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
    "qwen3_moe": (
        Qwen3MoeConfig,
        _EXPERTS | {"norm_topk_prob": True, "num_hidden_layers": 3, "mlp_only_layers": [1]},
    ),
    "qwen2_moe": (Qwen2MoeConfig, _EXPERTS | {"shared_expert_intermediate_size": 56}),
    "olmoe": (OlmoeConfig, {"num_experts": 8, "num_experts_per_tok": 2}),
    "mixtral": (MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_5_vl": (
        Qwen2_5_VLConfig,
        {"rope_parameters": _THREE_AXES, "vision_config": _VISION | {"fullatt_block_indexes": [0]}},
    ),
    "qwen3_vl": (
        Qwen3VLConfig,
        {"rope_parameters": _THREE_AXES | {"mrope_interleaved": True}, "vision_config": _QWEN3_VISION},
    ),
    "qwen3_vl_moe": (
        Qwen3VLMoeConfig,
        _EXPERTS | {"rope_parameters": _THREE_AXES | {"mrope_interleaved": True}, "vision_config": _QWEN3_VISION},
    ),
    "mistral3": (
        Mistral3Config,
        {
            "model_type": "mistral",
            "sliding_window": 8,
            "tie_word_embeddings": False,
            "vision_config": _OTHER_VISION | {"model_type": "pixtral", "head_dim": 16},
        },
    ),
    "gemma3_images": (
        Gemma3Config,
        {
            "num_hidden_layers": 6,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "vision_config": _OTHER_VISION,
        },
    ),
    "glm4_moe": (
        Glm4MoeConfig,
        _GROUPED | {"attention_bias": True, "use_qk_norm": True, "n_shared_experts": 2, "routed_scaling_factor": 1.7},
    ),
    "minimax_m2": (
        MiniMaxM2Config,
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        },
    ),
    "deepseek_v2": (
        DeepseekV2Config,
        _GROUPED | _LATENT | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 1.7},
    ),
    "deepseek_v2_lite": (DeepseekV2Config, _GROUPED | _LATENT | {"q_lora_rank": None}),
    "deepseek_v3": (DeepseekV3Config, _GROUPED | _LATENT | {"attention_bias": True}),
    "glm4_moe_lite": (
        Glm4MoeLiteConfig,
        _GROUPED | _LATENT | {"v_head_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
    ),
    "gpt_oss": (
        GptOssConfig,
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "sliding_window": 8,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150_000.0,
                "factor": 8.0,
                "truncate": False,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen3_next": (Qwen3NextConfig, _HYBRID | _EXPERTS | {"shared_expert_intermediate_size": 56}),
    "qwen3_5": (Qwen3_5TextConfig, _HYBRID | {"num_hidden_layers": 5, "full_attention_interval": 2}),
    "qwen3_5_moe": (Qwen3_5MoeTextConfig, _HYBRID | _EXPERTS | {"shared_expert_intermediate_size": 56}),
}


FAMILY_KEYS: dict[TinyFamily, dict[str, Any]] = {family: keys for family, (_, keys) in _FAMILY.items()}
"""Keys of each family's tiny config beyond the common shape."""


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
    config_class, settings = _FAMILY[family]
    shape = {key: value for key, value in _SHAPE.items() if key != "head_dim" or family not in _WITHOUT_HEAD_DIM}
    keys = {**shape, **settings, **overrides}
    if family in _MULTIMODAL:
        outer = {name: keys[name] for name in ("vision_config", "tie_word_embeddings") if name in keys}
        outer |= {name: keys[name] for name in ("bos_token_id", "eos_token_id")}
        keys = {"text_config": {name: value for name, value in keys.items() if name != "vision_config"}, **outer}
    config = config_class(**keys)
    auto = AutoModelForImageTextToText if family in _MULTIMODAL else AutoModelForCausalLM
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


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer of at most `VOCAB_SIZE` tokens with a ChatML template, in `folder`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            min_frequency=1,
            show_progress=False,
            special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": None,
        "model_max_length": _SHAPE["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        "added_tokens_decoder": {
            str(index): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for index, token in enumerate(SPECIAL_TOKENS)
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _randomise(model: PreTrainedModel, seed: int) -> None:
    """Weights large enough that logits differ clearly between tokens and positions."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        biases = [each for each in model.named_buffers() if each[0].endswith("e_score_correction_bias")]
        for name, parameter in [*model.named_parameters(), *biases]:
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("linear_attn.norm.weight"):
                parameter.copy_(1.0 + 0.2 * noise)
            elif name.endswith("norm.weight"):
                parameter.copy_(_mean_of_norms(model) + 0.2 * noise)
            elif name.endswith(("A_log", "dt_bias")):
                parameter.copy_(noise - 1.0)  # a memory of some tens of tokens
            elif name.endswith((".gate.weight", "router.weight")):
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
    """The norms of Gemma and of hybrid models multiply by 1 plus their weight."""
    return 0.0 if model.config.model_type.startswith(("gemma", "qwen3_5", "qwen3_next")) else 1.0


TinyFolder = Callable[..., Path]
