"""Models on the native CPU path: as close to transformers as bf16 lets them be, and always the same text."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.host_model import HostModel
from engine.models.loader import host_model, load_model
from engine.models.native_model import NativeModel
from engine.request import SamplingParams
from kernels.cpu.native import NativeForward
from kernels.cpu.native.library import load
from kernels.cpu.native.staged import StagedForward
from kernels.cpu.native_ops import NativeOps
from tests.engine.execution.harness import GREEDY, Harness, forward_logits, prompt
from tests.support.tiny_families import FAMILIES, PLAIN_FAMILIES, TinyFamily
from tests.support.tiny_models import make_checkpoint, reference_model

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

PARAMS = {"greedy": GREEDY, "sampled": SamplingParams(temperature=1.0, top_p=0.95, ignore_eos=True)}
LENGTHS = (1, 5, 16, 17, 40, 70)
MIXTURES_IN_ONE_CALL: tuple[TinyFamily, ...] = (
    "qwen3_moe",
    "qwen2_moe",
    "olmoe",
    "mixtral",
    "qwen3_vl_moe",
    "glm4_moe",
    "minimax_m2",
)


@cache
def load_native(folder: Path, *, int8_kv: bool = False) -> HostModel:
    checkpoint = open_checkpoint(folder)
    return host_model(load_model(checkpoint, NativeOps(2, int8_kv=int8_kv), checkpoint.config.max_position))


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> Path:
    return tiny_folders[request.param]


def assert_like_transformers(folder: Path) -> None:
    tokens = prompt(70)
    with torch.no_grad():
        expected = reference_model(folder)(torch.tensor([tokens])).logits[0]
    actual = forward_logits(load_native(folder), tokens, 512)
    assert actual.dtype == torch.float32
    similarity = cosine_similarity(actual, expected)
    if "linear_num_key_heads" in describe(folder) or '"attention_k_eq_v"' in describe(folder):
        # A recurrent state carries rounding on, and large scores magnify it: no further than in transformers with the
        # same dtype.
        with torch.no_grad():
            rounded = reference_model(folder, torch.bfloat16)(torch.tensor([tokens])).logits[0].float()
        assert 1 - similarity.median() < 1.25 * (1 - cosine_similarity(rounded, expected).median())
        return
    # Rounding may choose another expert where two have nearly the same probability, so single tokens may differ.
    assert (similarity.median() if "experts" in describe(folder) else similarity.min()) > 0.999


def describe(folder: Path) -> str:
    """The text of the folder's config.json."""
    return (folder / "config.json").read_text()


def test_logits(folder: Path) -> None:
    assert_like_transformers(folder)


@pytest.mark.parametrize("family", [*PLAIN_FAMILIES, *MIXTURES_IN_ONE_CALL])
def test_the_pass_in_stages_gives_the_bits_of_the_single_call(family: str, tiny_folders: dict[str, Path]) -> None:
    model = load_native(tiny_folders[family])
    assert isinstance(model, NativeModel)
    assert isinstance(model._forward, NativeForward)
    expected = forward_logits(model, prompt(70), 33)
    checkpoint = open_checkpoint(tiny_folders[family])
    staged = load_model(checkpoint, NativeOps(2), checkpoint.config.max_position)
    assert isinstance(staged, NativeModel)
    staged._forward = StagedForward(staged._shape, staged._weights)
    before = staged.expert_tokens.copy(), model.expert_tokens.copy()
    assert torch.equal(forward_logits(staged, prompt(70), 33), expected)
    assert np.array_equal(forward_logits(model, prompt(70), 33), expected)
    counted = staged.expert_tokens - before[0]
    assert np.array_equal(counted, model.expert_tokens - before[1])
    assert (counted.sum() > 0) == (family in MIXTURES_IN_ONE_CALL)


@pytest.mark.parametrize(
    "overrides",
    [
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True, "head_dim": 8, "intermediate_size": 77},
        {"num_key_value_heads": 1, "vocab_size": 515},
    ],
    ids=str,
)
def test_logits_of_other_llama_shapes(tmp_path: Path, overrides: dict[str, object]) -> None:
    assert_like_transformers(make_checkpoint(tmp_path / "model", "llama", **overrides))


@pytest.mark.parametrize("chunk_tokens", [1, 16, 33])
def test_chunks_change_no_bit(folder: Path, chunk_tokens: int) -> None:
    model, tokens = load_native(folder), prompt(70)
    assert torch.equal(forward_logits(model, tokens, chunk_tokens), forward_logits(model, tokens, 512))


@pytest.mark.parametrize("toggle", ["plain", "preempted", "chunked"])
@pytest.mark.parametrize("choice", PARAMS)
def test_text_alone_and_in_a_batch(folder: Path, toggle: str, choice: str) -> None:
    assert_same_alone(load_native(folder), toggle, choice)


def test_text_alone_and_in_a_batch_with_int8_kv(folder: Path) -> None:
    assert_same_alone(load_native(folder, int8_kv=True), "preempted", "sampled")


@cache
def text_alone(model: HostModel, choice: str, index: int) -> list[int]:
    harness = Harness(model)
    harness.add(prompt(LENGTHS[index]), PARAMS[choice], max_tokens=16, seed=index)
    return harness.run()["0"].tokens


def assert_same_alone(model: HostModel, toggle: str, choice: str) -> None:
    batch = Harness(model, **({"chunk_tokens": 5} if toggle == "chunked" else {}))  # type: ignore[arg-type]
    for index, length in enumerate(LENGTHS):
        batch.add(prompt(length), PARAMS[choice], max_tokens=16, seed=index)
    batch.run(preempt_every=2 if toggle == "preempted" else None)
    for index in range(len(LENGTHS)):
        assert batch.results[str(index)].tokens == text_alone(model, choice, index)
