"""The layouts of GGUF files that hold more than renamed tensors: latent attention, and gated delta nets."""

from typing import Any

import numpy as np

LATENT_NAMES = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.k_b_proj": "attn_k_b",
    "self_attn.v_b_proj": "attn_v_b",
}
DELTA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkvz": "ssm_in",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.dt": "ssm_dt",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
HYBRIDS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
LATENTS = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")

Tensors = dict[str, np.ndarray]


def converted(name: str, array: np.ndarray, config: dict[str, Any], *, older: bool) -> Tensors:
    """The tensors that the converter writes for one of a folder, by the folder's names, by the rules of llama.cpp's
    converter. `older`: as it did before latents, or the inputs of delta nets, were in tensors of their own."""
    if name.endswith("kv_b_proj.weight") and not older:
        return _latent_pair(name, array, config)
    if config["model_type"] not in HYBRIDS:
        return {name: array}
    if name.endswith("in_proj_qkvz.weight") and not older:
        return _separate_inputs(name, array, config)
    if config["model_type"] != "qwen3_next":
        array = _tiled(name, array, config)
    if name.endswith(".A_log"):
        return {name.replace("linear_attn.A_log", "linear_attn.ssm_a"): -np.exp(array)}
    if name.endswith(".dt_bias"):
        return {name.replace(".dt_bias", ".dt.bias"): array}
    if name.endswith("conv1d.weight"):
        return {name: array.squeeze(1)}
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return {name: array + np.float32(1)}
    return {name: array}


def _latent_pair(name: str, array: np.ndarray, config: dict[str, Any]) -> Tensors:
    """Rows of each head: its key, then its value. Keys are transposed."""
    own, value = config["qk_nope_head_dim"], config["v_head_dim"]
    by_head = array.reshape(config["num_attention_heads"], own + value, -1)
    return {
        name.replace("kv_b_proj", "k_b_proj"): by_head[:, :own].transpose(0, 2, 1).copy(),
        name.replace("kv_b_proj", "v_b_proj"): by_head[:, own:].copy(),
    }


def _separate_inputs(name: str, array: np.ndarray, config: dict[str, Any]) -> Tensors:
    keys, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    by_head = array.reshape(keys, 2 * key_dim + 2 * values, -1)
    ends = [key_dim, 2 * key_dim, 2 * key_dim + values]
    query, key, value, gate = (part.reshape(-1, array.shape[1]) for part in np.split(by_head, ends, axis=1))
    return {
        name.replace("in_proj_qkvz", "in_proj_qkv"): np.concatenate((query, key, value)),
        name.replace("in_proj_qkvz", "in_proj_z"): gate.copy(),
    }


def _tiled(name: str, array: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """Value heads from the order of their key heads to that of their places within these."""
    dim = config["linear_value_head_dim"]
    first = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        return np.concatenate((array[:first], _tiled_rows(array[first:], config, dim)))
    if name.endswith("in_proj_z.weight"):
        return _tiled_rows(array, config, dim)
    if name.endswith(("in_proj_a.weight", "in_proj_b.weight", ".A_log", ".dt_bias")):
        return _tiled_rows(array, config, 1)
    return _tiled_rows(array.T, config, dim).T.copy() if name.endswith("out_proj.weight") else array


def _tiled_rows(rows: np.ndarray, config: dict[str, Any], dim: int) -> np.ndarray:
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    return rows.reshape(keys, values // keys, dim, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)


def layout_keys(arch: str, config: dict[str, Any], *, older: bool) -> dict[str, Any]:
    """The keys of these layouts by the converter's rules; None leaves out one of every architecture."""
    keys: dict[str, Any] = {}
    if config["model_type"] in HYBRIDS:
        keys = _delta_keys(config)
    elif config["model_type"] in LATENTS:
        keys = _latent_keys(config, older)
    return {f"{arch}.{key}": value for key, value in keys.items()}


def _delta_keys(config: dict[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "rope.dimension_count": int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]),
        "attention.recurrent_layers": [kind == "linear_attention" for kind in config["layer_types"]],
    }
    if config["model_type"] != "qwen3_next":
        keys["rope.dimension_sections"] = [11, 11, 10, 0]
    if "num_experts" in config:
        keys["expert_count"] = config["num_experts"]
        keys["expert_used_count"] = config["num_experts_per_tok"]
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
        keys["expert_shared_feed_forward_length"] = config["shared_expert_intermediate_size"]
    return keys


def _latent_keys(config: dict[str, Any], older: bool) -> dict[str, Any]:
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    key, value = config["qk_nope_head_dim"] + rotated, config["v_head_dim"]
    lengths = {"attention.key_length": key, "attention.value_length": value}
    if not older:
        lengths = {
            "attention.head_count_kv": 1,
            "attention.key_length": rank + rotated,
            "attention.value_length": rank,
            "attention.key_length_mla": key,
            "attention.value_length_mla": value,
        }
    keys: dict[str, Any] = {
        **lengths,
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": config["q_lora_rank"],
        "rope.dimension_count": rotated,
        "leading_dense_block_count": config.get("first_k_dense_replace", 1),
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_weights_norm": config["norm_topk_prob"] or None,
        "expert_gating_func": None if config["model_type"] == "deepseek_v2" else 2,
    }
    rope = config["rope_parameters"]
    if rope["rope_type"] == "yarn":
        keys["rope.scaling.type"] = "yarn"
        keys["rope.scaling.factor"] = float(rope["factor"])
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    return keys
