"""The tiny model of every family that the engine serves: its transformers config, and that config's keys."""

from typing import Any, Literal, get_args

from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    Exaone4Config,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    Gemma4Config,
    Gemma4TextConfig,
    Gemma4UnifiedConfig,
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

from tests.support.tiny_tokenizer import IM_END, IM_START, MAX_POSITIONS, VOCAB_SIZE

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
    "gemma4",
    "gemma4_moe",
    "gemma4_shared",
    "qwen3_moe",
    "qwen2_moe",
    "olmoe",
    "mixtral",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "mistral3",
    "gemma3_images",
    "gemma4_images",
    "gemma4_unified",
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

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_POSITIONS,
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

_FULL_LAYERS = {
    "num_hidden_layers": 6,
    "sliding_window": 8,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "final_logit_softcapping": 3.0,
}
"""Gemma 4: five sliding layers to one full layer with heads of its own. A full layer has half of a sliding one's KV, as
in the published models with 31 B and 26 B parameters."""

MULTIMODAL = {"qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "mistral3", "gemma3_images", "gemma4_images", "gemma4_unified"}
"""Families whose settings are those of their text model, but for `vision_config`, and for keys that both have."""

_THREE_AXES = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "depth": 1, "out_hidden_size": 64}
_QWEN3_VISION = _VISION | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
_OTHER_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1} | {
    "image_size": 28,
    "patch_size": 14,
}

WITHOUT_HEAD_DIM = {
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

CONFIGS: dict[TinyFamily, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
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
    "gemma4": (Gemma4TextConfig, _FULL_LAYERS | {"num_key_value_heads": 4, "hidden_size_per_layer_input": 0}),
    "gemma4_moe": (
        Gemma4TextConfig,
        _FULL_LAYERS
        | {"hidden_size_per_layer_input": 0, "attention_k_eq_v": False, "enable_moe_block": True, "num_experts": 8}
        | {"top_k_experts": 2, "moe_intermediate_size": 40},
    ),
    "gemma4_shared": (
        Gemma4TextConfig,
        _FULL_LAYERS
        | {"attention_k_eq_v": False, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCAB_SIZE}
        | {"num_key_value_heads": 1, "num_hidden_layers": 5, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}
        | {"layer_types": [f"{kind}_attention" for kind in ("sliding", "sliding", "full", "sliding", "full")]},
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
    "gemma4_images": (
        Gemma4Config,
        _FULL_LAYERS | {"hidden_size_per_layer_input": 0, "vision_config": _OTHER_VISION | {"head_dim": 16}},
    ),
    "gemma4_unified": (
        Gemma4UnifiedConfig,
        _FULL_LAYERS | {"vision_config": {"mm_embed_dim": 64, "mm_posemb_size": 16}},
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


FAMILY_KEYS: dict[TinyFamily, dict[str, Any]] = {family: keys for family, (_, keys) in CONFIGS.items()}
"""Keys of each family's tiny config beyond the common shape."""
