"""Models to serve: shapes of real ones, with random weights made where they are used.

Random weights measure speed and never quality.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import torch

from engine.checkpoints.huggingface.config import config_from_json
from engine.models.config import ModelConfig
from engine.models.layout import EMBEDDING, expected_tensors
from engine.models.loader import load_model
from engine.models.transformer import Transformer
from kernels.arrays import Array, Dtype
from kernels.exchange import array_of, tensor_of
from kernels.ops import Ops

_LLAMA_3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 128_000,
    "eos_token_id": 128_001,
    "torch_dtype": "bfloat16",
}


def _stretched(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


SHAPES: Mapping[str, dict[str, Any]] = {
    "llama-3.2-1b": _LLAMA_3
    | {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "rope_parameters": _stretched(32.0),
    },
    "llama-3.1-8b": _LLAMA_3
    | {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
        "rope_parameters": _stretched(8.0),
    },
    "tiny": _LLAMA_3
    | {
        "vocab_size": 300,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "rope_parameters": _stretched(8.0),
    },
    "tiny-latents": _LLAMA_3
    | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "vocab_size": 300,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "tiny-gemma4": {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "vocab_size": 300,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "head_dim": 32,
        "global_head_dim": 64,
        "attention_k_eq_v": False,
        "sliding_window": 16,
        "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": True,
    },
}
"""config.json of each. The tiny ones are for trying the code; `tiny-latents` is a DeepSeek-V2-Lite without experts, and
`tiny-gemma4` has layers of two kinds, a windowed one at first."""


class RandomWeights:
    """Weights that are stored nowhere: see `engine.checkpoints.checkpoint.WeightSource`."""

    def __init__(self, config: ModelConfig, device: torch.device, seed: int = 0) -> None:
        self.config, self._device = config, device
        self._generator = torch.Generator(device).manual_seed(seed)

    @property
    def weight_bytes(self) -> int:
        return weight_count(self.config) * 2

    def tensors(self, dtype: Dtype) -> Iterator[tuple[str, Array]]:
        """Drawn on the device, which is faster at it by far than to bring them to the host and back."""
        for name, shape in expected_tensors(self.config):
            tensor = torch.empty(shape, dtype=tensor_of(np.empty(0, dtype)).dtype, device=self._device)
            if name.endswith("norm.weight"):
                tensor.fill_(1.0)
            else:
                tensor.normal_(0.0, shape[-1] ** -0.5, generator=self._generator)
            yield name, array_of(tensor.cpu())


def random_model(name: str, ops: Ops, max_positions: int) -> Transformer:
    """A model of one of `SHAPES` on the device of `ops`, ready for positions below `max_positions`."""
    model = load_model(RandomWeights(config_from_json(SHAPES[name]), ops.device), ops, max_positions)
    assert isinstance(model, Transformer)
    return model


def weight_count(config: ModelConfig) -> int:
    return sum(prod(shape) for _, shape in expected_tensors(config))


def weights_per_step(config: ModelConfig) -> int:
    """Weights that a decode step reads: all, but of an embedding that is not the head a row a token."""
    shapes = dict(expected_tensors(config))
    skipped = 0 if config.tie_embeddings else prod(shapes[EMBEDDING])
    return weight_count(config) - skipped
