"""A config.json of each family, as small as it can be."""

from typing import Any

from engine.checkpoints.huggingface.config import config_from_json
from engine.checkpoints.huggingface.families import FAMILIES as DESCRIBED
from engine.models.config import ModelConfig

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PROPORTIONAL = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "mistral": LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"},
    "qwen2": LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
} | {
    name: LLAMA
    | {"architectures": [family.architecture], "model_type": name}
    | ({"num_key_value_heads": 4} if family.defaults.get("num_key_value_heads") == 8 else {})
    | ({"hidden_size_per_layer_input": 0} if family.defaults.get("hidden_size_per_layer_input") else {})
    for name, family in DESCRIBED.items()
    if name not in ("llama", "mistral", "qwen2", "qwen3")
}


def read(family: str = "llama", generation_config: dict[str, Any] | None = None, /, **keys: Any) -> ModelConfig:
    return config_from_json(FAMILIES[family] | keys, generation_config)
