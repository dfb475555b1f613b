"""The whole engine on Triton's kernels: the CPU's text, whatever shares the steps."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from engine.execution.device.runner import DeviceRunner
from engine.request import SamplingParams
from kernels.triton.grouped import GroupedLinear
from tests.engine.execution.device.harness import LADEN, NEEDS_GPU, ON_GPU, TRITON, TRITON_GRAPHS, load_triton
from tests.engine.execution.harness import GREEDY, Harness, MakeRunner, load_tiny, prompt
from tests.engine.models.quantization.folders import CASES, write
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint

_SPARSE: Mapping[str, dict[str, object]] = {
    "qwen3_moe": {"mlp_only_layers": []},
    "glm4_moe": {"first_k_dense_replace": 0},
    "deepseek_v3": {"first_k_dense_replace": 0},
}
"""Keys of families whose first layer is dense otherwise."""

SEEDED = SamplingParams(temperature=0.9, ignore_eos=True)


def _generate(harness: Harness) -> list[list[int]]:
    """A prompt in chunks, a hit on it, a fork of it, and one that uses whatever there is; then one is preempted."""
    parent = harness.add(prompt(19), GREEDY, max_tokens=5)
    harness.add(prompt(19), SEEDED, max_tokens=3, seed=7, fork_of=parent)
    harness.add(prompt(4), replace(LADEN, stop_token_ids=(5,)), max_tokens=4, seed=8)
    harness.step()
    harness.step()
    harness.scheduler.preempt(parent.id)
    return [generated.tokens for generated in harness.run().values()]


@pytest.mark.parametrize(
    ("family", "make_runner"),
    [
        ("qwen3", TRITON),
        ("mistral", TRITON_GRAPHS),
        ("gemma2", TRITON),
        ("qwen3_moe", TRITON_GRAPHS),
        ("gpt_oss", TRITON_GRAPHS),
        ("glm4_moe", TRITON),
        ("minimax_m2", TRITON_GRAPHS),
        ("deepseek_v3", TRITON_GRAPHS),
        pytest.param("llama", *ON_GPU.values, marks=NEEDS_GPU),
    ],
)
def test_text_is_that_of_the_cpu(tmp_path: Path, family: TinyFamily, make_runner: MakeRunner) -> None:
    folder = make_checkpoint(tmp_path / "model", family, num_hidden_layers=1, **_SPARSE.get(family, {}))
    expected = _generate(Harness(load_tiny(folder), chunk_tokens=17, max_running=3))
    harness = Harness(load_triton(folder), chunk_tokens=17, max_running=3, make_runner=make_runner)
    assert _generate(harness) == expected
    assert harness.scheduler.stats().cached_tokens_total > 0
    assert harness.scheduler.stats().preemptions_total == 1


def test_replayed_steps_count_the_tokens_of_experts_once(tmp_path: Path) -> None:
    """Neither the recording of graphs nor the rows that fill one up count."""
    folder = make_checkpoint(tmp_path / "model", "gpt_oss", num_hidden_layers=1)
    model = load_triton(folder)
    harness = Harness(model, max_running=3, make_runner=TRITON_GRAPHS)
    lengths = (3, 2, 4)
    for length in lengths:
        harness.add(prompt(length), GREEDY, max_tokens=3)
    harness.run()
    assert isinstance(harness.runner, DeviceRunner)
    assert harness.runner.launches.replayed_total > 0
    assert model.config.experts is not None
    tokens = sum(length + 2 for length in lengths)
    assert sum(harness.runner.expert_tokens) == tokens * model.config.experts.per_token


def test_text_of_integers_in_groups_is_that_of_the_cpu(tmp_path: Path) -> None:
    """Computed with as they are, and expanded."""
    source = make_checkpoint(tmp_path / "plain", "llama", num_hidden_layers=1, hidden_size=128, intermediate_size=128)
    case = next(case for case in CASES if case.name == "gptq-4-32-gptq-sym")
    write(tmp_path / "quantised", source, case)
    expected = _generate(Harness(load_tiny(tmp_path / "quantised"), chunk_tokens=17, max_running=3))
    model = load_triton(tmp_path / "quantised")
    assert isinstance(model._weights.layers[0].output, GroupedLinear)
    harness = Harness(model, chunk_tokens=17, max_running=3, make_runner=TRITON_GRAPHS)
    assert _generate(harness) == expected
