"""Models with recurrent layers: the same text, to the bit on the native path, whatever happens to their states."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from engine import Engine, EngineConfig
from engine.checkpoints.checkpoint import open_checkpoint
from engine.execution.runner import ModelRunner
from engine.memory.state_pool import StateUse
from engine.models.config import UnsupportedCheckpoint
from engine.models.host_model import HostModel
from engine.models.loader import host_model, load_model
from engine.request import SamplingParams
from engine.speculation.ngram import NgramProposer
from engine.speculation.policy import FixedDepth
from engine.speculation.speculator import Speculator
from kernels.cpu.native.library import load
from kernels.cpu.native_ops import NativeOps
from tests.engine.execution.draft_cases import TOGGLES, Coin, Oracle, assert_same, mixed, proposer_of, without
from tests.engine.execution.draft_cases import model_of as torch_model_of
from tests.engine.execution.harness import Generated, Harness, forward_logits, load_tiny, prompt
from tests.support.tiny_families import HYBRID_FAMILIES
from tests.support.tiny_models import make_checkpoint, reference_model

native = pytest.mark.skipif(load() is None, reason="the native library is not built")

LOGPROBS = SamplingParams(temperature=0, ignore_eos=True, logprobs=2, prompt_logprobs=0)
PROMPT = prompt(60)


@pytest.fixture(params=HYBRID_FAMILIES)
def folder(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> Path:
    return tiny_folders[request.param]


@cache
def native_model_of(folder: Path) -> HostModel:
    checkpoint = open_checkpoint(folder)
    return host_model(load_model(checkpoint, NativeOps(2), checkpoint.config.max_position))


def test_logits_beyond_the_chunks_of_transformers(folder: Path) -> None:
    """Its recurrence runs in chunks of 64 tokens."""
    tokens = prompt(200)
    with torch.no_grad():
        expected = reference_model(folder)(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(forward_logits(load_tiny(folder), tokens, 90), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "toggle"),
    [*(("toggled oracle", toggle) for toggle in TOGGLES), ("ngram", "plain"), ("adversary", "chunked")],
)
def test_drafts_change_no_text(tiny_folders: dict[str, Path], kind: str, toggle: str) -> None:
    folder = tiny_folders["qwen3_5"]
    expected = without(folder)
    speculator = Speculator([proposer_of(kind, expected)], FixedDepth(8))
    harness = Harness(torch_model_of(folder), speculator=speculator, **TOGGLES[toggle])  # type: ignore[arg-type]
    mixed(harness)
    given = harness.run(preempt_every=3 if toggle == "preempted" else None)
    assert_same(dict(given), expected)


def shown(generated: Generated) -> tuple[object, ...]:
    deltas = generated.deltas
    return generated.tokens, [entry for delta in deltas for entry in delta.logprobs], deltas[-1].finish_reason


@native
@pytest.mark.parametrize(
    ("family", "drafts", "settings"),
    [
        ("qwen3_5", False, {"chunk_tokens": 3, "step_tokens": 128}),
        ("qwen3_5", True, {"chunk_tokens": 5}),
        ("qwen3_5", True, {"saved_states": 1}),
        ("qwen3_5", False, {"prefix_cache": False}),
        ("qwen3_next", True, {"chunk_tokens": 7}),
        ("qwen3_5_moe", True, {}),
    ],
    ids=str,
)
def test_a_request_has_the_same_bits_alone_and_in_any_batch(
    tiny_folders: dict[str, Path], family: str, drafts: bool, settings: dict[str, object]
) -> None:
    """With others of the same prefix, preempted, in chunks, with right and wrong drafts."""
    model = native_model_of(tiny_folders[family])
    alone = Harness(model)
    alone.add(PROMPT, LOGPROBS, max_tokens=20)
    expected = shown(alone.run()["0"])
    tokens = alone.results["0"].tokens
    oracle = Coin(Oracle({str(index): tokens for index in range(31, 35)}, wrong_every=4))
    speculator = Speculator([NgramProposer(64), oracle], FixedDepth(5)) if drafts else None
    harness = Harness(model, speculator=speculator, **settings)  # type: ignore[arg-type]
    for index in range(31):
        harness.add(prompt(10 + index, seed=index), max_tokens=8)
    same = [harness.add(PROMPT, LOGPROBS, max_tokens=20) for _ in range(3)]
    results = harness.run(preempt_every=16)
    assert [shown(results[request.id]) for request in same] == [expected] * 3
    harness.add(PROMPT, SamplingParams(temperature=0, ignore_eos=True, logprobs=2), max_tokens=20)
    hit = harness.run()["34"]
    assert shown(hit) == expected
    usage = hit.deltas[-1].usage
    assert usage is not None
    if "saved_states" not in settings:
        assert usage.cached_tokens == (48 if settings.get("prefix_cache", True) else 0)
    drafted = [results[request.id].deltas[-1].usage for request in same]
    assert drafts == (sum(usage.accepted_draft_tokens for usage in drafted if usage is not None) > 0)


@native
def test_choices_of_a_call_begin_at_the_state_saved_in_their_prompt(folder: Path) -> None:
    model = native_model_of(folder)
    harness = Harness(model)
    parent = harness.add(prompt(70), max_tokens=8)
    children = [harness.add(prompt(70), max_tokens=8, fork_of=parent) for _ in range(3)]
    results = harness.run()
    assert all(results[child.id].tokens == results[parent.id].tokens for child in children)
    usages = [results[child.id].deltas[-1].usage for child in children]
    assert [usage.cached_tokens for usage in usages if usage is not None] == [64] * 3


@native
def test_a_state_that_is_not_finite_fails_its_request_alone(folder: Path) -> None:
    harness = Harness(native_model_of(folder))
    runner = harness.runner
    assert isinstance(runner, ModelRunner)
    assert runner._states is not None
    poisoned, other = harness.add(prompt(40), max_tokens=8), harness.add(prompt(17), max_tokens=8)
    harness.step()
    assert poisoned.state is not None
    runner._states.memory[poisoned.state] = np.nan
    results = harness.run()
    assert results[poisoned.id].deltas[-1].error
    assert len(results[other.id].tokens) == 8
    again = harness.add(prompt(40), max_tokens=8)
    assert harness.run()[again.id].deltas[-1].error is None
    assert harness.states is not None
    assert harness.states.count(StateUse.RUNNING) == 0


def multimodal(source: Path, target: Path, model_type: str, architecture: str) -> Path:
    """A folder of the same text within a model with a vision tower and a drafting layer."""
    target.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors" and file.name != "config.json":
            (target / file.name).write_bytes(file.read_bytes())
    tensors = load_file(source / "model.safetensors")
    renamed = {
        name if "language_model" in name else name.replace("model.", "model.language_model.", 1): array
        for name, array in tensors.items()
    }
    renamed["model.visual.patch_embed.proj.weight"] = np.zeros((4, 4), np.float32)
    renamed["mtp.fc.weight"] = np.zeros((4, 4), np.float32)
    save_file(renamed, target / "model.safetensors", {"format": "pt"})
    text = json.loads((source / "config.json").read_text())
    text.pop("architectures")
    rope = text["rope_parameters"] | {"mrope_section": [1, 1, 0], "mrope_interleaved": True}
    config = {
        "model_type": model_type,
        "architectures": [architecture],
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": text | {"rope_parameters": rope},
        "vision_config": {"depth": 2, "hidden_size": 8},
    }
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(
    ("family", "architecture"),
    [("qwen3_5", "Qwen3_5ForConditionalGeneration"), ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration")],
)
def test_the_text_of_a_multimodal_folder(
    tiny_folders: dict[str, Path], tmp_path: Path, family: str, architecture: str
) -> None:
    source = tiny_folders[family]
    folder = multimodal(source, tmp_path / "model", family, architecture)
    expected = forward_logits(load_tiny(source), prompt(20), 20)
    assert torch.equal(forward_logits(load_tiny(folder), prompt(20), 20), expected)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("attn_output_gate", False, "attn_output_gate"),
        ("layer_types", ["linear_attention"] * 5, "linear_layers: no layer with attention"),
        ("layer_types", ["mamba"] * 5, "layer_types: 'mamba' is not understood"),
        ("layer_types", ["full_attention"], "layer_types: not a list of 5 names"),
        ("linear_key_head_dim", 24, "key heads of 24 dimensions"),
        ("linear_value_head_dim", 1024, "value heads of 1024 dimensions"),
        ("linear_num_key_heads", 3, "3 key heads do not divide 4 value heads"),
        ("linear_conv_kernel_dim", 1, "a convolution of 1 tokens"),
        ("linear_conv_kernel_dim", 99, "linear_conv_kernel_dim"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused_by_key(
    tiny_folders: dict[str, Path], tmp_path: Path, key: str, value: object, named: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_folders["qwen3_5"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(UnsupportedCheckpoint, match=named):
        open_checkpoint(folder)


def test_a_projection_of_another_size_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", "qwen3_next")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.linear_attn.in_proj_qkvz.weight"
    tensors[name] = tensors[name][:-1].copy()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedCheckpoint, match=r"in_proj_qkvz\.weight has shape .* not \d+ rows"):
        open_checkpoint(folder)


@native
def test_an_engine_serves_a_hybrid_model_with_drafts_by_lookup(tiny_folders: dict[str, Path]) -> None:
    config = EngineConfig(dtype="bfloat16", kv_cache_bytes=8 << 20, threads=1, ngram=True)
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    with Engine.load({"hybrid": tiny_folders["qwen3_5"]}, config) as engine:
        texts = [[choice.token_ids for choice in choices] for choices in engine.generate("hybrid", ["a b"] * 3, params)]
        assert texts[0] == texts[1] == texts[2]
        assert len(texts[0][0]) == 8
