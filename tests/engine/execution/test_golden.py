"""Each family equals transformers: logits within 1e-4 in float32, greedy text exactly, under every toggle."""

from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine.models.host_model import HostModel
from engine.request import SamplingParams
from tests.engine.execution.harness import GREEDY, Harness, forward_logits, load_tiny, prompt
from tests.support.tiny_families import FAMILIES, FAMILY_KEYS, PLAIN_FAMILIES
from tests.support.tiny_models import make_checkpoint, reference_model, reference_text

PROMPT_LENGTHS = (1, 5, 16, 17, 40, 70)
NEW_TOKENS = 24


@cache
def _loaded(folder: Path) -> tuple[HostModel, PreTrainedModel]:
    return load_tiny(folder), reference_model(folder)


@cache
def _expected(folder: Path, length: int, seed: int = 0) -> list[int]:
    return reference_text(_loaded(folder)[1], prompt(length, seed), NEW_TOKENS)


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> Path:
    return tiny_folders[request.param]


@pytest.fixture(params=PLAIN_FAMILIES)
def plain_folder(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> Path:
    return tiny_folders[request.param]


@pytest.mark.parametrize("chunk_tokens", [1, 16, 33, 512])
def test_logits(folder: Path, chunk_tokens: int) -> None:
    model, oracle = _loaded(folder)
    tokens = prompt(70)
    with torch.no_grad():
        expected = oracle(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(forward_logits(model, tokens, chunk_tokens), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "mscale": 0.8,
            "mscale_all_dim": 0.4,
            "beta_fast": 16.0,
            "truncate": False,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_logits_with_stretched_rope(tmp_path: Path, rope: dict[str, object]) -> None:
    folder = make_checkpoint(tmp_path / "model", "llama", rope_parameters={"rope_theta": 10_000.0, **rope})
    tokens = prompt(100)
    with torch.no_grad():
        expected = reference_model(folder)(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(forward_logits(load_tiny(folder), tokens, 64), expected, atol=1e-4, rtol=1e-4)


def test_logits_with_the_long_frequencies_of_longrope(tmp_path: Path) -> None:
    rope = FAMILY_KEYS["phi3"]["rope_parameters"] | {"original_max_position_embeddings": 32}
    folder = make_checkpoint(
        tmp_path / "model", "phi3", rope_parameters=rope, original_max_position_embeddings=32, sliding_window=None
    )
    tokens = prompt(100)
    with torch.no_grad():
        expected = reference_model(folder)(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(forward_logits(load_tiny(folder), tokens, 512), expected, atol=1e-4, rtol=1e-4)


def test_dynamic_rope_past_its_window_equals_token_by_token_generation(tmp_path: Path) -> None:
    folder = make_checkpoint(
        tmp_path / "model",
        "llama",
        max_position_embeddings=32,
        rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0},
    )
    ids = torch.tensor([prompt(28)])
    expected = reference_model(folder).generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40, eos_token_id=None, pad_token_id=0
    )
    harness = Harness(load_tiny(folder))
    harness.add(prompt(28), max_tokens=40)
    assert harness.run()["0"].tokens == expected[0, 28:].tolist()


@pytest.mark.parametrize(
    "overrides",
    [
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True, "head_dim": 8},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
    ],
    ids=str,
)
def test_logits_of_other_llama_shapes(tmp_path: Path, overrides: dict[str, object]) -> None:
    folder = make_checkpoint(tmp_path / "model", "llama", **overrides)
    tokens = prompt(40)
    with torch.no_grad():
        expected = reference_model(folder)(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(forward_logits(load_tiny(folder), tokens, 512), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("length", PROMPT_LENGTHS)
@pytest.mark.parametrize("chunk_tokens", [1, 7, 16, 512])
def test_greedy_text_alone(plain_folder: Path, length: int, chunk_tokens: int) -> None:
    harness = Harness(_loaded(plain_folder)[0], max_running=1, step_tokens=chunk_tokens, chunk_tokens=chunk_tokens)
    harness.add(prompt(length), max_tokens=NEW_TOKENS)
    assert harness.run()["0"].tokens == _expected(plain_folder, length)


@pytest.mark.parametrize("toggle", ["plain", "chunked", "tiny pool", "preempted", "no prefix cache"])
def test_greedy_text_in_a_batch_of_32(folder: Path, toggle: str) -> None:
    settings: dict[str, dict[str, object]] = {
        "plain": {},
        "chunked": {"step_tokens": 64, "chunk_tokens": 5},
        "tiny pool": {"num_blocks": 24, "max_running": 22},  # for the standard class: 18 and 16
        "preempted": {},
        "no prefix cache": {"prefix_cache": False, "num_blocks": 40},
    }
    harness = Harness(_loaded(folder)[0], **settings[toggle])  # type: ignore[arg-type]
    lengths = [PROMPT_LENGTHS[index % len(PROMPT_LENGTHS)] for index in range(32)]
    for index, length in enumerate(lengths):
        harness.add(prompt(length, seed=index % 2), max_tokens=NEW_TOKENS)
    results = harness.run(preempt_every=3 if toggle == "preempted" else None)
    if toggle in ("preempted", "tiny pool"):
        assert harness.scheduler.stats().preemptions_total > 0
    for index, length in enumerate(lengths):
        assert results[str(index)].tokens == _expected(folder, length, index % 2)


def test_greedy_text_after_a_prefix_hit(folder: Path) -> None:
    harness = Harness(_loaded(folder)[0])
    for _ in range(3):
        harness.add(prompt(70), max_tokens=NEW_TOKENS)
        harness.run()
    hits = [generated.deltas[-1].usage.cached_tokens for generated in harness.results.values()]  # type: ignore[union-attr]
    assert hits == [0, 64, 64]
    assert all(generated.tokens == _expected(folder, 70) for generated in harness.results.values())


def test_blocks_freed_and_reused(plain_folder: Path) -> None:
    """One request after another through a pool that each fills: nothing of the last shows in the next."""
    harness = Harness(_loaded(plain_folder)[0], num_blocks=8)  # 6 of them for the standard class
    for round_ in range(3):
        for length in (70, 40, 17):
            request = harness.add(prompt(length, seed=round_), max_tokens=NEW_TOKENS)
            assert harness.run()[request.id].tokens == _expected(plain_folder, length, round_)


SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, top_k=200, ignore_eos=True)


@pytest.mark.parametrize("toggle", ["plain", "preempted", "chunked"])
def test_seeded_text_alone_and_in_a_batch(plain_folder: Path, toggle: str) -> None:
    model = _loaded(plain_folder)[0]
    alone = Harness(model)
    alone.add(prompt(40), SAMPLED, max_tokens=20, seed=77)
    expected = alone.run()["0"].tokens

    batch = Harness(model, **({"chunk_tokens": 5} if toggle == "chunked" else {}))  # type: ignore[arg-type]
    for index in range(31):
        batch.add(prompt(PROMPT_LENGTHS[index % 6]), GREEDY if index % 2 else SAMPLED, max_tokens=20, seed=index)
    together = batch.add(prompt(40), SAMPLED, max_tokens=20, seed=77)
    batch.run(preempt_every=2 if toggle == "preempted" else None)
    assert batch.results[together.id].tokens == expected
    assert len({tuple(generated.tokens) for generated in batch.results.values()}) > 10, "seeds must matter"


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-7])
def test_the_lowest_temperatures_are_greedy(plain_folder: Path, temperature: float) -> None:
    """Their inverse is no float32, and must not fail the step that others share."""
    harness = Harness(_loaded(plain_folder)[0])
    harness.add(prompt(17), SamplingParams(temperature=temperature, ignore_eos=True), max_tokens=NEW_TOKENS)
    harness.add(prompt(40), max_tokens=NEW_TOKENS)
    results = harness.run()
    assert [results[name].tokens for name in "01"] == [_expected(plain_folder, 17), _expected(plain_folder, 40)]
