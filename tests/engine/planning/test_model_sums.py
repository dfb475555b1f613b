"""Bytes and operations of known models, against sums by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.memory.kv_memory import InsufficientMemory
from engine.planning.hardware import DEVICES
from engine.planning.model_sums import (
    ModelSums,
    UnplannableModel,
    kv_token_bytes,
    place_model,
    smallest_tensor_parallel,
)
from engine.planning.step_features import StepFeatures
from engine.planning.step_times import LeastTimes, RooflineTimes
from tests.support.planning import LLAMA_8B, LLAMA_70B, SMOLLM2, model_config


@pytest.mark.parametrize(
    ("config", "kv_dtype", "expected"),
    [
        (LLAMA_8B, "auto", 2 * 32 * 8 * 128 * 2),  # 128 KiB
        (LLAMA_8B, "fp8", 2 * 32 * 8 * 128),
        (LLAMA_8B, "int8", 2 * 32 * 8 * (128 + 2)),  # with a scale of two bytes a head
        (LLAMA_70B, "auto", 2 * 80 * 8 * 128 * 2),  # 320 KiB
        (SMOLLM2, "auto", 2 * 30 * 3 * 64 * 2),
    ],
)
def test_kv_bytes_of_a_token(config, kv_dtype, expected) -> None:
    assert kv_token_bytes(model_config(config), kv_dtype) == expected


def test_weights_of_llama_8b() -> None:
    sums = ModelSums.of(model_config(LLAMA_8B))
    embedding = 128_256 * 4096
    layer = 4096 * 4096 * 2 + 2 * 1024 * 4096 + 3 * 4096 * 14_336 + 2 * 4096
    assert sums.weights == 2 * embedding + 32 * layer + 4096 == 8_030_261_248
    assert sums.weight_bytes == 2 * sums.weights
    assert sums.dense_bytes == sums.weight_bytes - 2 * embedding  # looked up, not read
    assert sums.token_flop == sums.dense_bytes
    assert sums.pair_flop == 4 * 32 * 32 * 128


def test_a_tied_embedding_is_read_as_the_head() -> None:
    sums = ModelSums.of(model_config(SMOLLM2))
    assert sums.dense_bytes == sums.weight_bytes == 2 * sums.weights
    assert sums.weights == 134_515_008


def test_quantised_matrices() -> None:
    plain, fp8, int4 = (ModelSums.of(model_config(LLAMA_8B), each) for each in ("none", "fp8", "int4"))
    assert plain.weights == fp8.weights
    assert 0.49 < fp8.dense_bytes / plain.dense_bytes < 0.51
    assert 0.27 < int4.dense_bytes / plain.dense_bytes < 0.30


def test_a_step_reads_the_experts_that_its_tokens_choose() -> None:
    config = LLAMA_8B | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    sums = ModelSums.of(model_config(config))
    one = sums.dense_bytes + sums.expert_bytes / 4
    assert sums.read_bytes(1) == pytest.approx(one)
    assert one < sums.read_bytes(4) < sums.read_bytes(64) <= sums.dense_bytes + sums.expert_bytes


def test_blocks_of_llama_8b_on_an_h100() -> None:
    """92 % of 80e9 bytes, less 16.06e9 of weights, the largest step and the graphs, in blocks of 2 MiB."""
    config = model_config(LLAMA_8B)
    placement = place_model(config, ModelSums.of(config), DEVICES["h100"])
    left = int(0.92 * 80e9) - 2 * 8_030_261_248 - (2 << 30) - (16 * (4096 + 14_336) * 2048 + 4 * 128_256 * 256)
    assert placement.pool.block_bytes == 2 << 20
    assert placement.num_blocks == left // (2 << 20)
    assert placement.pool.tokens == 16 * placement.num_blocks
    assert (placement.max_running, placement.step_tokens) == (256, 2048)


def test_devices_for_a_model_that_one_does_not_hold() -> None:
    config = model_config(LLAMA_70B)
    sums = ModelSums.of(config)
    with pytest.raises(InsufficientMemory, match="at least 2 are needed"):
        place_model(config, sums, DEVICES["h100"])
    assert smallest_tensor_parallel(config, sums, DEVICES["h100"]) == 4
    assert smallest_tensor_parallel(config, ModelSums.of(config, "int4"), DEVICES["h100"]) == 1
    halves = place_model(config, sums, DEVICES["h200"], tensor_parallel=2)
    assert halves.pool.block_bytes == 16 * 2 * 80 * 8 * 128 * 2 / 2
    with pytest.raises(UnplannableModel, match="num_key_value_heads"):
        place_model(config, sums, DEVICES["h200"], tensor_parallel=16)


@given(st.integers(0, 4096), st.integers(0, 256), st.integers(0, 8192), st.sampled_from(sorted(DEVICES)))
def test_no_step_is_faster_than_the_least(prefill: int, rows: int, context: int, device: str) -> None:
    sums = ModelSums.of(model_config(SMOLLM2))
    features = StepFeatures(prefill, prefill * context, rows, rows * context)
    least = LeastTimes(sums, DEVICES[device]).least_ns(features)
    assert RooflineTimes(sums, DEVICES[device]).predict_ns(features) >= least


def test_the_least_of_a_decode_step_is_its_bytes_over_the_bandwidth() -> None:
    sums = ModelSums.of(model_config(LLAMA_8B))
    least = LeastTimes(sums, DEVICES["h200"]).least_ns(StepFeatures(0, 0, 1, 1000))
    assert least == pytest.approx(1e9 * (sums.dense_bytes + 1000 * 131_072) / 4.8e12)
