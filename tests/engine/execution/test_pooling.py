"""Embeddings equal transformers' hidden states, pooled, however their prompts are computed."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine.models.host_model import HostModel
from engine.request import FinishReason, Pooling, TokenDelta
from tests.engine.execution.harness import GREEDY, Harness, load_tiny
from tests.engine.execution.pooling_cases import LENGTHS, embedding, of, prompt, vector
from tests.support.tiny_families import PLAIN_FAMILIES
from tests.support.tiny_models import reference_model


@cache
def _loaded(folder: Path) -> tuple[HostModel, PreTrainedModel]:
    return load_tiny(folder), reference_model(folder)


def expected(oracle: PreTrainedModel, tokens: Sequence[int], pooling: Pooling) -> torch.Tensor:
    with torch.no_grad():
        hidden = oracle.model(torch.tensor([tokens])).last_hidden_state[0]
    pooled = hidden.mean(dim=0) if pooling is Pooling.MEAN else hidden[-1]
    return torch.nn.functional.normalize(pooled, dim=0)


def assert_equals_oracle(oracle: PreTrainedModel, tokens: Sequence[int], pooling: Pooling, delta: TokenDelta) -> None:
    torch.testing.assert_close(vector(delta), expected(oracle, tokens, pooling), atol=1e-4, rtol=0)


@pytest.fixture(params=PLAIN_FAMILIES)
def folder(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> Path:
    return tiny_folders[request.param]


@pytest.fixture
def llama(tiny_folders: dict[str, Path]) -> tuple[HostModel, PreTrainedModel]:
    return _loaded(tiny_folders["llama"])


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize(
    "toggle",
    [
        {"max_running": 1},
        {},
        {"step_tokens": 64, "chunk_tokens": 1},
        {"step_tokens": 64, "chunk_tokens": 7},
        {"step_tokens": 64, "chunk_tokens": 16},
        {"num_blocks": 12, "max_running": 11},
        {"prefix_cache": False},
    ],
    ids=["alone", "batch", "chunks of 1", "chunks of 7", "chunks of 16", "tiny pool", "no prefix cache"],
)
def test_equals_transformers(folder: Path, pooling: Pooling, toggle: Mapping[str, int | bool]) -> None:
    model, oracle = _loaded(folder)
    harness = Harness(model, **toggle)  # type: ignore[arg-type]
    for length in LENGTHS:
        harness.add(prompt(length), embedding(pooling), max_tokens=0)
    results = harness.run()
    for index, length in enumerate(LENGTHS):
        assert_equals_oracle(oracle, prompt(length), pooling, of(results, str(index)))


@pytest.mark.parametrize("pooling", Pooling)
def test_equals_transformers_despite_preemptions(llama: tuple[HostModel, PreTrainedModel], pooling: Pooling) -> None:
    model, oracle = llama
    harness = Harness(model, max_running=16, step_tokens=64, chunk_tokens=7)
    embedded = []
    for length in LENGTHS:
        harness.add(prompt(length), GREEDY, max_tokens=6)
        embedded.append(harness.add(prompt(length), embedding(pooling), max_tokens=0))
    for request in embedded[-2:]:  # half way, each in its turn
        while request.computed < 20:
            assert harness.step()
        assert harness.scheduler.preempt(request.id)
    results = harness.run()
    for request in embedded:
        delta = of(results, request.id)
        assert delta.usage.preemptions == (request in embedded[-2:])
        assert_equals_oracle(oracle, request.tokens, pooling, delta)


@pytest.mark.parametrize(("pooling", "hit_tokens"), [(Pooling.MEAN, 0), (Pooling.LAST, 64)])
def test_only_last_uses_cached_kv(llama: tuple[HostModel, PreTrainedModel], pooling: Pooling, hit_tokens: int) -> None:
    model, oracle = llama
    harness = Harness(model)
    harness.add(prompt(70), max_tokens=1)
    harness.run()
    harness.add(prompt(70), embedding(pooling), max_tokens=0)
    delta = of(harness.run(), "1")
    assert delta.usage.cached_tokens == hit_tokens
    assert_equals_oracle(oracle, prompt(70), pooling, delta)


def test_what_an_embedding_computed_is_there_for_others(llama: tuple[HostModel, PreTrainedModel]) -> None:
    harness = Harness(llama[0])
    harness.add(prompt(70), embedding(Pooling.MEAN), max_tokens=0)
    harness.run()
    harness.add(prompt(70), max_tokens=1)
    usage = harness.run()["1"].deltas[-1].usage
    assert usage.cached_tokens == 64


def test_one_that_was_aborted_half_way_leaves_nothing_in_its_slot(llama: tuple[HostModel, PreTrainedModel]) -> None:
    model, oracle = llama
    harness = Harness(model, max_running=1, chunk_tokens=16)
    first = harness.add(prompt(70), embedding(Pooling.MEAN), max_tokens=0)
    harness.step()
    assert 0 < first.computed < 70
    harness.scheduler.abort(first.id)
    harness.add(prompt(40), embedding(Pooling.MEAN), max_tokens=0)
    assert_equals_oracle(oracle, prompt(40), Pooling.MEAN, of(harness.run(), "1"))


def test_is_of_length_1(llama: tuple[HostModel, PreTrainedModel]) -> None:
    harness = Harness(llama[0])
    harness.add(prompt(40), embedding(Pooling.MEAN), max_tokens=0)
    assert vector(of(harness.run(), "0")).norm().item() == pytest.approx(1, abs=1e-6)


def test_non_finite_states_fail(llama: tuple[HostModel, PreTrainedModel], monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama[0]
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *given: forward(*given) * float("nan"))
    harness = Harness(model)
    harness.add(prompt(5), embedding(Pooling.MEAN), max_tokens=0)
    (delta,) = harness.run()["0"].deltas
    assert (delta.finish_reason, delta.embedding) == (FinishReason.ERROR, b"")
