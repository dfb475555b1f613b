"""config.json: keys that refuse a checkpoint, by their names, and configs of any content."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoints.huggingface.config import config_from_json
from engine.models.config import UnsupportedCheckpoint
from tests.engine.models.config_json import FAMILIES, LLAMA, PROPORTIONAL, read


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"model_type": "dbrx"}, "model_type: 'dbrx'"),
        ({"model_type": None}, "model_type: is missing"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"is_causal": False}, "is_causal"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
        ({"num_experts": 8}, "num_experts"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}, "auto_map"),
        ({"hidden_size": None}, "hidden_size: is missing"),
        ({"hidden_size": "64"}, "hidden_size: '64'"),
        ({"hidden_size": 65}, "head_dim: missing"),
        ({"hidden_size": 10**12}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_kv_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"head_dim": 514}, "head_dim"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"rope_theta": -1.0}, "rope theta"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 0}}, "rope theta"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"max_position_embeddings": 2**40}, "max_position"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused_by_the_key(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        read(**keys)
    assert named in str(caught.value)
    assert str(caught.value).isprintable()


FULL_AND_SLIDING = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}


@pytest.mark.parametrize(
    ("family", "keys", "named"),
    [
        ("qwen3_moe", {"num_experts": 0}, "num_experts"),
        ("qwen3_moe", {"num_experts": 4, "num_local_experts": 8}, "num_experts"),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok"),
        ("qwen3_moe", {"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ("qwen3_moe", {"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ("qwen3_moe", {"mlp_only_layers": [4]}, "mlp_only_layers"),
        ("qwen3_moe", {"mlp_only_layers": [True]}, "mlp_only_layers"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size"),
        ("mixtral", {"num_local_experts": 10**9}, "num_local_experts"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
        ("gemma2", {"sliding_window": 0}, "sliding_window"),
        ("gemma2", {"sliding_window": None}, "sliding_window"),
        ("gemma2", {"attn_logit_softcapping": float("nan")}, "attn_logit_softcapping"),
        ("gemma2", {"attn_logit_softcapping": 0.0}, "attn_logit_softcapping"),
        ("gemma2", {"final_logit_softcapping": -1.0}, "final_logit_softcapping"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ("gemma2", {"hidden_activation": "relu"}, "hidden_activation"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"rope_parameters": {"rope_type": "default"}}, "rope_parameters"),
        ("gemma3_text", {"rope_parameters": FULL_AND_SLIDING | {"chunked_attention": {}}}, "rope_parameters"),
        ("gemma3_text", {"layer_types": ["linear_attention"] * 4}, "layer_types"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ("gemma4_text", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ("gemma4_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma4_text", {"hidden_size_per_layer_input": 256}, "vocab_size_per_layer_input"),
        ("gemma4_text", {"hidden_size_per_layer_input": -1}, "hidden_size_per_layer_input"),
        ("gemma4_text", {"num_kv_shared_layers": 1}, "num_kv_shared_layers"),
        ("gemma4_text", {"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        ("gemma4_text", {"num_kv_shared_layers": 10**9}, "num_kv_shared_layers"),
        ("gemma4_text", {"num_global_key_value_heads": 3, "attention_k_eq_v": True}, "num_kv_heads"),
        ("gemma4_text", {"global_head_dim": 1024}, "head_dim"),
        ("gemma4_text", {"per_layer_config": {"0": {"head_dim": 512}}}, "per_layer_config"),
        ("gemma4_text", {"per_layer_config": {"4": {"head_dim": 512}}}, "per_layer_config"),
        ("gemma4_text", {"per_layer_config": {"full_attention": {"head_dim": 512}}}, "per_layer_config"),
        ("gemma4_text", {"per_layer_config": {"3": {"head_dim": "512"}}}, "per_layer_config: 3: head_dim"),
        ("gemma4_text", {"per_layer_config": {"3": {"sliding_window": 8}}}, "per_layer_config: 3: sliding_window"),
        ("gemma4_text", {"enable_moe_block": True}, "top_k_experts"),
        ("gemma4_text", {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 5}, "top_k_experts"),
        ("gemma4_text", {"rope_parameters": PROPORTIONAL | {"full_attention": {"factor": 2.0}}}, "factor"),
        ("gemma4", {"text_config": {"model_type": "gemma3_text"}}, "text_config.model_type"),
        ("gemma4_unified", {"text_config": {"model_type": "gemma4_text"}}, "text_config.model_type"),
        ("granite", {"attention_multiplier": float("inf")}, "attention_multiplier"),
        ("granite", {"logits_scaling": 0.0}, "logit_divisor"),
        ("granite", {"residual_multiplier": -1.0}, "residual_scale"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("smollm3", {"no_rope_layers": [1, 0, 2, 1]}, "no_rope_layers"),
        ("smollm3", {"use_sliding_window": True}, "sliding_window"),
        ("exaone4", {"sliding_window_pattern": "LLX"}, "sliding_window_pattern"),
        ("exaone4", {"sliding_window": -1}, "sliding_window"),
        ("glm4", {"head_dim": 6, "partial_rotary_factor": 0.5}, "rope"),
        ("phi3", {"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [1.0] * 8}}, "short_factor"),
        ("phi3", {"rope_scaling": {"type": "su", "short_factor": [1.0] * 8, "long_factor": [0.0] * 8}}, "long_factor"),
        ("phi3", {"rope_scaling": {"type": "su", "short_factor": [1.0] * 8}}, "long_factor"),
        ("qwen2_5_vl", {"text_config": {"model_type": "qwen3_vl_text"}}, "text_config.model_type"),
        ("qwen3_vl", {"text_config": LLAMA | {"model_type": None, "hidden_size": 0}}, "text_config.hidden_size"),
        ("qwen3_vl", {"text_config": ["llama"]}, "text_config"),
        ("mistral3", {"text_config": LLAMA | {"model_type": "ministral3"}}, "text_config.model_type"),
        ("gemma3", {"text_config": {"model_type": "gemma3_text", "sliding_window": -1}}, "text_config.sliding_window"),
        ("qwen3_vl", {"rope_scaling": {"type": "mrope", "factor": 2.0}}, "rope_scaling: factor"),
        ("gpt_oss", {"swiglu_limit": 8.0}, "swiglu_limit"),
        ("gpt_oss", {"swiglu_alpha": "1.702"}, "swiglu_alpha"),
        ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 4}, "num_experts_per_tok"),
        ("gpt_oss", {"layer_types": ["sliding_attention"]}, "layer_types"),
        ("gpt_oss", {"sliding_window": None}, "sliding_window"),
        ("glm4_moe", {"n_routed_experts": 10, "n_group": 4}, "expert groups"),
        ("glm4_moe", {"n_group": 4, "topk_group": 5}, "expert groups"),
        ("glm4_moe", {"n_routed_experts": 8, "n_group": 8}, "expert groups"),
        ("glm4_moe", {"n_routed_experts": 32, "n_group": 8, "num_experts_per_tok": 5}, "experts per token"),
        ("glm4_moe", {"routed_scaling_factor": 0.0}, "a scale of 0.0"),
        ("glm4_moe", {"first_k_dense_replace": -1}, "first_k_dense_replace"),
        ("glm4_moe", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("glm4_moe", {"scoring_func": "softmax"}, "scoring_func"),
        ("minimax_m2", {"attn_type_list": [1, 0, 1, 1]}, "attn_type_list"),
        ("minimax_m2", {"shared_intermediate_size": 8}, "shared_intermediate_size"),
        ("minimax_m2", {"use_routing_bias": False}, "use_routing_bias"),
        ("minimax_m2", {"rotary_dim": 256}, "partial_rotary_factor"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method"),
        ("deepseek_v2", {"topk_method": "group_limited_greedy"}, "n_group"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("deepseek_v3", {"v_head_dim": 256}, "v_head_dim"),
        ("deepseek_v3", {"num_key_value_heads": 2}, "num_key_value_heads"),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave"),
        ("deepseek_v3", {"qk_rope_head_dim": 63}, "head_dim"),
        ("deepseek_v3", {"kv_lora_rank": 0}, "kv_lora_rank"),
        ("deepseek_v3", {"qk_nope_head_dim": 512}, "head_dim"),
        ("glm4_moe_lite", {"mlp_layer_types": ["dense", "linear", "dense", "sparse"]}, "mlp_layer_types"),
    ],
)
def test_a_familys_key_is_refused_by_name(family: str, keys: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        read(family, **keys)
    assert named in str(caught.value)
    assert str(caught.value).isprintable()


NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -1, 2**31, 2**63, 10**400, 1e308])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ROPE_KEYS = ["rope_type", "factor", "rope_theta", "original_max_position_embeddings", "beta_fast", "mscale", "truncate"]
ROPE = st.fixed_dictionaries(
    {"type": st.sampled_from(["linear", "dynamic", "yarn", "llama3", "default", "longrope"])},
    optional=dict.fromkeys(
        [*ROPE_KEYS, "short_factor", "long_factor", "low_freq_factor", "high_freq_factor", "attention_factor"],
        NUMBERS | JSON,
    ),
)
OTHER_KEYS = ["rope_theta", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "head_dim"]
OTHER_KEYS += ["num_key_value_heads", "tie_word_embeddings", "partial_rotary_factor", "num_experts", "hidden_act"]
OTHER_KEYS += ["num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "mlp_only_layers", "no_rope_layers"]
OTHER_KEYS += ["decoder_sparse_step", "query_pre_attn_scalar", "attn_logit_softcapping", "logits_scaling"]
OTHER_KEYS += ["n_routed_experts", "n_group", "topk_group", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"]
OTHER_KEYS += ["text_config", "mlp_layer_types", "attn_type_list", "rotary_dim", "swiglu_limit", "moe_layer_freq"]
OTHER_KEYS += ["global_head_dim", "per_layer_config", "num_kv_shared_layers", "attention_k_eq_v", "enable_moe_block"]
OTHER_KEYS += ["hidden_size_per_layer_input", "num_global_key_value_heads", "use_double_wide_mlp"]
OTHER_KEYS += ["shared_expert_intermediate_size", "sliding_window_pattern", "rope_parameters", "hidden_activation"]


@settings(max_examples=300, deadline=None)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    changes=st.dictionaries(st.sampled_from([*LLAMA, *OTHER_KEYS]), NUMBERS | JSON, max_size=3),
    rope=ROPE | JSON,
    generation_config=st.none() | st.fixed_dictionaries({"eos_token_id": JSON}),
)
def test_whatever_a_config_says_it_is_read_or_refused(
    family: str, changes: dict[str, Any], rope: Any, generation_config: dict[str, Any] | None
) -> None:
    try:
        config = config_from_json(FAMILIES[family] | {"rope_scaling": rope} | changes, generation_config)
    except UnsupportedCheckpoint as error:
        refused = str(error)
    else:
        assert len(config.windows) == config.num_layers
        return
    assert refused.isprintable()
