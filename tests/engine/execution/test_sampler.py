"""The sampler and the runner at the edges: rows of which nothing is left, and prompts that were scored before."""

from pathlib import Path

import pytest

from engine.execution.runner import ModelRunner
from engine.grammar.allowed import AllowedTokens
from engine.models.host_model import HostModel
from engine.request import Fault, FinishReason, SamplingParams
from kernels.arrays import Array, Floats
from tests.engine.execution.harness import Harness, load_tiny, prompt
from tests.support.tiny_tokenizer import VOCAB_SIZE

EOS = 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_tokens_fails_alone(tiny_folders: dict[str, Path], temperature: float) -> None:
    """All that may come is the end, which may not come yet."""
    harness = Harness(load_tiny(tiny_folders["llama"]))
    stuck = harness.add(prompt(9), SamplingParams(temperature=temperature, min_tokens=3), max_tokens=8, eos=(EOS,))
    stuck.matcher = AllowedTokens({EOS}, VOCAB_SIZE)
    other = harness.add(prompt(11), SamplingParams(temperature=temperature, min_tokens=3), max_tokens=8, eos=(EOS,))
    other.matcher = AllowedTokens({EOS, 7}, VOCAB_SIZE)
    results = harness.run()
    last = results[stuck.id].deltas[-1]
    assert (last.finish_reason, last.error) == (FinishReason.ERROR, Fault.GRAMMAR)
    assert (results[stuck.id].tokens, results[other.id].tokens[:3]) == ([], [7, 7, 7])


class CountingHead:
    """A model, and of how many hidden states logits were computed."""

    def __init__(self, model: HostModel) -> None:
        self._model = model
        self.rows = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def logits(self, hidden: Array) -> Floats:
        self.rows += len(hidden)
        return self._model.logits(hidden)


def test_a_prompt_is_scored_once_whatever_becomes_of_its_request(tiny_folders: dict[str, Path]) -> None:
    """Once its log-probabilities are delivered, a request that comes back is as any other: it may use cached blocks."""
    model = CountingHead(load_tiny(tiny_folders["llama"]))
    harness = Harness(model, make_runner=ModelRunner)  # type: ignore[arg-type]
    params = SamplingParams(temperature=0, prompt_logprobs=1, ignore_eos=True)
    request = harness.add(prompt(70), params, max_tokens=6)
    harness.step()
    harness.step()
    assert model.rows == 69 + 2
    harness.scheduler.preempt(request.id)
    steps = 0
    while harness.step():
        steps += 1
    assert model.rows == 69 + 6
    assert steps == 4
    deltas = harness.results[request.id].deltas
    assert [len(delta.prompt_logprobs) for delta in deltas] == [70, 0, 0, 0, 0, 0]
    assert request.high_water_tokens >= 71


def test_a_scored_request_that_comes_back_uses_cached_blocks(tiny_folders: dict[str, Path]) -> None:
    harness = Harness(load_tiny(tiny_folders["llama"]), max_running=4, chunk_tokens=16, step_tokens=16)
    params = SamplingParams(temperature=0, prompt_logprobs=0, ignore_eos=True)
    request = harness.add(prompt(70), params, max_tokens=4)
    while request.output_tokens == 0:
        harness.step()
    harness.scheduler.preempt(request.id)
    harness.step()
    assert request.output_tokens == 2, "all but the last block was there"
