"""Checkpoints to measure on: a real small model, and a Llama-shaped one of half a billion random parameters.

Random weights measure speed and never quality.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

HALF_BILLION = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 1280,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}

SMOLLM2_SHAPE = HALF_BILLION | {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}


def half_billion(root: Path) -> Path:
    """A folder with 508.6 M random bf16 parameters (1.02 GB); made once under `root`."""
    return random_checkpoint(root / "bench-llama-500m", HALF_BILLION)


def smollm2_shape(root: Path) -> Path:
    """A folder with random bf16 parameters in SmolLM2-135M's shape; made once under `root`."""
    return random_checkpoint(root / "bench-llama-135m", SMOLLM2_SHAPE)


def random_checkpoint(folder: Path, config: dict[str, object]) -> Path:
    """The folder, filled with random weights for a config unless it has one."""
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    save_file(random_weights(config), folder / "model.safetensors", {"format": "pt"})
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def random_weights(config: dict[str, object]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    size = {key: value for key, value in config.items() if isinstance(value, int)}
    hidden, inter, head_dim = size["hidden_size"], size["intermediate_size"], size["head_dim"]

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn((rows, columns), generator=generator) * columns**-0.5).to(torch.bfloat16)

    weights = {
        "model.embed_tokens.weight": matrix(size["vocab_size"], hidden),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
        "lm_head.weight": matrix(size["vocab_size"], hidden),
    }
    for layer in range(size["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes = {
            "self_attn.q_proj": (size["num_attention_heads"] * head_dim, hidden),
            "self_attn.k_proj": (size["num_key_value_heads"] * head_dim, hidden),
            "self_attn.v_proj": (size["num_key_value_heads"] * head_dim, hidden),
            "self_attn.o_proj": (hidden, size["num_attention_heads"] * head_dim),
            "mlp.gate_proj": (inter, hidden),
            "mlp.up_proj": (inter, hidden),
            "mlp.down_proj": (hidden, inter),
        }
        weights |= {f"{prefix}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{norm}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    return weights


def byte_tokenizer() -> dict[str, object]:
    """The smallest tokenizer that can be loaded: one token a byte. The measurements send token ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    parsed: dict[str, object] = json.loads(tokenizer.to_str())
    return parsed
