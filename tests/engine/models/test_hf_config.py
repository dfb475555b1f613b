"""config.json: what each family's keys mean."""

import math
from typing import Any

import pytest

from engine.checkpoints.huggingface.config import config_from_json
from engine.models.config import ModelConfig, RopeConfig, UnsupportedCheckpoint
from kernels.layout import HeadShape
from tests.engine.models.config_json import LLAMA, PROPORTIONAL, read


def test_the_plain_llama() -> None:
    assert read() == ModelConfig(
        family="llama",
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_layers=4,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        max_position=1024,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=10_000.0),
        windows=(None,) * 4,
        eos_token_ids=(2,),
        bos_token_id=1,
    )


def test_what_sets_the_families_apart() -> None:
    def traits(config: ModelConfig) -> tuple[bool, bool, bool, bool, int]:
        return config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm, config.head_dim

    assert traits(read("llama", attention_bias=True, mlp_bias=True)) == (True, True, True, False, 16)
    assert traits(read("mistral")) == (False, False, False, False, 16)
    assert traits(read("qwen2")) == (True, False, False, False, 16)
    assert traits(read("qwen3")) == (False, False, False, True, 128)
    assert traits(read("qwen3", head_dim=32, attention_bias=True)) == (True, True, False, True, 32)


def test_keys_that_do_not_change_the_arithmetic_are_ignored() -> None:
    benign = {"attention_dropout": 0.1, "use_cache": False, "pretraining_tp": 2, "torch_dtype": "float16", "new": 1}
    assert read(**benign) == read()
    assert read(num_experts=0, quantization_config=None, auto_map={}) == read()


class TestWindows:
    def test_mistral_slides_in_every_layer(self) -> None:
        assert read("mistral", sliding_window=100).windows == (100,) * 4
        assert read("mistral", sliding_window=None).windows == (None,) * 4
        assert read("mistral").windows == (4096,) * 4

    @pytest.mark.parametrize("family", ["qwen2", "qwen3"])
    def test_qwen_slides_from_a_layer_up_and_only_if_told_to(self, family: str) -> None:
        keys = {"sliding_window": 100, "max_window_layers": 3}
        assert read(family, **keys).windows == (None,) * 4
        assert read(family, use_sliding_window=True, **keys).windows == (None, None, None, 100)
        assert read(family, use_sliding_window=True, sliding_window=100).windows == (None,) * 4

    def test_layer_types_win_over_the_count(self) -> None:
        types = ["sliding_attention", "full_attention"] * 2
        keys = {"use_sliding_window": True, "sliding_window": 100, "max_window_layers": 3, "layer_types": types}
        assert read("qwen3", **keys).windows == (100, None, 100, None)

    @pytest.mark.parametrize(
        ("family", "keys"),
        [
            ("qwen3", {"layer_types": ["chunked_attention"] * 4, "use_sliding_window": True}),
            ("qwen3", {"layer_types": ["full_attention"], "use_sliding_window": True}),
            ("qwen3", {"layer_types": ["sliding_attention"] * 4}),
            ("mistral", {"layer_types": ["sliding_attention", "full_attention"] * 2}),
        ],
    )
    def test_layer_types_that_contradict_are_refused(self, family: str, keys: dict[str, Any]) -> None:
        with pytest.raises(UnsupportedCheckpoint, match="layer_types"):
            read(family, **keys)


class TestRope:
    @pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
    def test_llama3_in_both_spellings(self, spelling: str) -> None:
        scaling = {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        }
        keys = (
            {"rope_parameters": scaling | {"rope_theta": 5e5}}
            if spelling == "rope_parameters"
            else {"rope_scaling": scaling, "rope_theta": 5e5}
        )
        config = read(**keys)
        assert config.rope == RopeConfig(theta=5e5, kind="llama3", factor=8.0, original_max_position=256)
        assert config.max_position == 1024

    def test_the_oldest_spelling_of_the_type(self) -> None:
        config = read(rope_scaling={"type": "linear", "factor": 4.0})
        assert config.rope == RopeConfig(kind="linear", factor=4.0, original_max_position=1024)
        assert config.max_position == 4096

    def test_dynamic_stretches_the_stated_window(self) -> None:
        config = read(rope_scaling={"type": "dynamic", "factor": 2})
        assert config.rope == RopeConfig(kind="dynamic", factor=2.0, original_max_position=1024)
        assert config.max_position == 2048

    def test_yarn_whether_the_stated_window_is_stretched_or_not(self) -> None:
        scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
        for stated in (1024, 4096):
            config = read(rope_scaling=scaling, max_position_embeddings=stated)
            assert config.rope == RopeConfig(kind="yarn", factor=4.0, original_max_position=1024)
            assert config.max_position == 4096

    def test_yarns_finer_settings(self) -> None:
        finer = {"attention_factor": 0.7, "beta_fast": 16, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.5}
        rope = read(rope_scaling={"rope_type": "yarn", "factor": 2.0, "truncate": False, **finer}).rope
        assert rope == RopeConfig(kind="yarn", factor=2.0, original_max_position=1024, truncate=False, **finer)

    def test_a_null_setting_is_an_absent_one(self) -> None:
        assert read(rope_scaling=None).rope == RopeConfig()
        assert read(rope_parameters={"rope_type": "default", "factor": None}).rope == RopeConfig()

    def test_a_part_of_the_head(self) -> None:
        assert read(partial_rotary_factor=0.5).rope.rotary_dim == 8
        assert read(rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}).rope.rotary_dim == 8
        assert read(partial_rotary_factor=1.0).rope.rotary_dim is None

    @pytest.mark.parametrize(
        ("scaling", "named"),
        [
            ({"rope_type": "longrope", "factor": 2.0}, "rope_scaling: short_factor"),
            ({"rope_type": "mrope", "factor": 2.0}, "rope_scaling: rope_type: 'mrope'"),
            ({"type": "su", "factor": 2.0}, "rope_scaling: type: 'su'"),
            ({"type": "linear"}, "rope_scaling: factor: is missing"),
            ({"type": "linear", "factor": "2"}, "rope_scaling: factor"),
            ({"type": "linear", "factor": 0.5}, "rope_scaling: factor"),
            ({"type": "linear", "factor": 1e300}, "rope_scaling: factor"),
            ({"type": "linear", "factor": 2.0, "low_freq_factor": 1.0}, "rope_scaling: low_freq_factor"),
            ({"type": "default", "mrope_section": [8, 4, 4]}, "rope_scaling: mrope_section"),
            ({"type": "llama3", "factor": 2.0}, "rope_scaling: low_freq_factor: is missing"),
            ({"full_attention": {"rope_type": "default"}}, "rope_scaling: full_attention"),
            (["linear"], "rope_scaling: is not an object"),
        ],
    )
    def test_what_is_not_understood_is_refused(self, scaling: Any, named: str) -> None:
        with pytest.raises(UnsupportedCheckpoint) as caught:
            read(rope_scaling=scaling)
        assert f"config.json: {named}" in str(caught.value)


class TestTokenIds:
    def test_one_or_many(self) -> None:
        assert read(eos_token_id=[3, 4]).eos_token_ids == (3, 4)
        assert read(eos_token_id=None).eos_token_ids == ()

    def test_those_for_generation_win(self) -> None:
        assert read("llama", {"eos_token_id": [7, 2]}).eos_token_ids == (7, 2)
        assert read("llama", {"eos_token_id": None}).eos_token_ids == (2,)
        assert read("llama", {}).eos_token_ids == (2,)

    @pytest.mark.parametrize("value", [512, -1, "2", True, [2, None], 10**400])
    def test_an_id_that_is_none_is_refused(self, value: Any) -> None:
        with pytest.raises(UnsupportedCheckpoint, match="eos"):
            read(eos_token_id=value)


class TestFamilies:
    def test_a_null_turns_a_softcap_off(self) -> None:
        config = read("gemma2", final_logit_softcapping=None)
        assert (config.attention_softcap, config.logit_softcap) == (50.0, None)

    def test_gemma3_in_the_older_spelling(self) -> None:
        config = read("gemma3_text", rope_local_base_freq=5e3, rope_scaling={"rope_type": "linear", "factor": 8.0})
        full = RopeConfig(theta=1e6, kind="linear", factor=8.0, original_max_position=1024)
        assert config.rope == full
        assert config.layer_ropes == (RopeConfig(theta=5e3),) * 4
        assert config.windows == (4096,) * 4

    def test_olmo3_scales_full_layers_only(self) -> None:
        scaling = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}
        config = read("olmo3", rope_theta=5e5, rope_scaling=scaling)
        assert [rope and rope.kind for rope in config.layer_ropes] == ["default"] * 3 + ["yarn"]
        assert config.max_position == 1024

    def test_layers_without_rope(self) -> None:
        assert [rope is None for rope in read("smollm3").layer_ropes] == [False, False, False, True]
        assert [rope is None for rope in read("exaone4").layer_ropes] == [False, False, False, True]
        assert read("exaone4", sliding_window=None).layer_ropes == ()

    def test_exaones_pattern_as_a_text(self) -> None:
        config = read("exaone4", sliding_window=8, sliding_window_pattern="LG")
        assert config.windows == (8, None, 8, None)

    def test_layers_with_experts(self) -> None:
        assert read("qwen3_moe", mlp_only_layers=[2]).sparse_layers == (True, True, False, True)
        assert read("qwen2_moe", decoder_sparse_step=2).sparse_layers == (False, True, False, True)

    def test_the_text_of_a_multimodal_file_nested_or_flat(self) -> None:
        axes = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [2, 3, 3], "mrope_interleaved": True}
        text = {key: value for key, value in LLAMA.items() if key not in ("architectures", "eos_token_id")}
        text |= {"model_type": "qwen3_vl_text", "rope_parameters": axes, "tie_word_embeddings": False, "head_dim": 16}
        nested = config_from_json(
            {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "text_config": text}
            | {"tie_word_embeddings": True, "eos_token_id": 7, "hidden_size": 1}
        )
        assert nested == read("qwen3_vl", rope_scaling=axes, tie_word_embeddings=True, eos_token_id=7, head_dim=16)
        assert (nested.rope, nested.tie_embeddings, nested.eos_token_ids) == (RopeConfig(theta=5e5), True, (7,))

    def test_gemma3s_sparse_text_config(self) -> None:
        """The published files state no more of a text than this."""
        text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
        text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
        config = config_from_json(
            {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
        )
        assert (config.vocab_size, config.num_heads, config.num_kv_heads, config.head_dim) == (262_208, 8, 4, 256)
        assert config.windows[:6] == (1024,) * 5 + (None,)
        assert config.tie_embeddings

    def test_gemma4_as_published(self) -> None:
        """The keys of the model with 31 B parameters, its vision tower left out."""
        text = {"attention_k_eq_v": True, "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256}
        text |= {"hidden_size": 5376, "hidden_size_per_layer_input": 0, "intermediate_size": 21504}
        text |= {"layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10, "num_attention_heads": 32}
        text |= {"max_position_embeddings": 262_144, "model_type": "gemma4_text", "num_global_key_value_heads": 4}
        text |= {"num_hidden_layers": 60, "num_key_value_heads": 16, "rope_parameters": PROPORTIONAL}
        text |= {"sliding_window": 1024, "use_bidirectional_attention": "vision", "enable_moe_block": False}
        config = config_from_json(
            {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": text}
        )
        sliding, full = HeadShape(16, 256), HeadShape(4, 512, has_values=False)
        assert config.layer_heads == ((sliding,) * 5 + (full,)) * 10
        assert config.windows == ((1024,) * 5 + (None,)) * 10
        assert config.layer_ropes[:1] == (RopeConfig(theta=1e4),)
        assert config.rope == RopeConfig(theta=1e6, kind="proportional", rotary_dim=128)
        assert (config.vocab_size, config.tie_embeddings, config.attention_scale) == (262_144, True, 1.0)
        assert (config.logit_softcap, config.attention_softcap, config.norm_offset) == (30.0, None, 0.0)

    def test_the_layers_that_share_kv(self) -> None:
        kinds = [f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding")]
        config = read("gemma4_text", layer_types=kinds, num_kv_shared_layers=2, use_double_wide_mlp=True)
        assert config.kv_sources == (0, 1, 0, 1), "the last layer is full, whatever the file says"
        assert config.layer_mlp_sizes == (96, 96, 192, 192)
        assert (config.kv_layers, config.kv_windows) == (2, (512, None))

    def test_gpt_oss_as_published(self) -> None:
        scaling = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
        scaling["original_max_position_embeddings"] = 4096
        config = read("gpt_oss", num_local_experts=32, rope_scaling=scaling, max_position_embeddings=131_072)
        assert config == read("gpt_oss", num_local_experts=32, max_position_embeddings=131_072)
        assert (config.windows, config.max_position) == ((128, None) * 2, 131_072)
        assert (config.rope.theta, config.rope.truncate, config.rope.original_max_position) == (150_000.0, False, 4096)

    def test_minimax_m2_in_the_older_spelling(self) -> None:
        config = read("minimax_m2", head_dim=32, rotary_dim=16, scoring_func="sigmoid", attn_type_list=[1] * 4)
        assert config.rope.rotary_dim == 16

    def test_the_scale_of_latent_attention(self) -> None:
        """YaRN's temperature is in the scores."""
        assert read("deepseek_v3").attention_scale is None
        scaling = {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "mscale": 1.0}
        stretched = read("deepseek_v3", rope_scaling=scaling | {"mscale_all_dim": 1.0})
        assert stretched.attention_scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
        assert read("deepseek_v3", rope_scaling=scaling).attention_scale is None

    def test_a_part_of_the_layers(self) -> None:
        config = read("qwen3_moe", mlp_only_layers=[2]).of_layers([2, 0])
        assert config.sparse_layers == (False, True)
        assert read("smollm3").of_layers([3, 0]).layer_ropes == (None, read("smollm3").rope)
