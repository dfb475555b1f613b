"""All forms of kernels that a GPU would compile are launched before the first request, those of drafts among them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import SchedulerConfig
from engine.execution.device import placement
from engine.execution.device.placement import drafted_step, run_drafted_steps, run_largest_step, run_sampled_steps
from engine.grammar.allowed import AllowedTokens
from engine.models.transformer import Transformer
from engine.scheduling.plan import StepPlan
from engine.speculation import FixedDepth, Speculator
from kernels.reference_step import ReferenceStepOps
from kernels.triton.ops import TritonOps
from kernels.triton.step_ops import TritonStepOps
from tests.engine.execution.device.harness import DEVICE, LADEN, load_on, load_reference, runners
from tests.engine.execution.draft_cases import SEEDED, Coin, Oracle, usage_of
from tests.engine.execution.harness import GREEDY, Harness, load_tiny, prompt
from tests.support.kernel_forms import Form, recorded_forms
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint

CONFIG = SchedulerConfig(max_running=3, step_tokens=36, chunk_tokens=20)


def _warm_up(model: Transformer) -> set[Form]:
    """The forms that `measure_memory` launches for a model with drafts."""
    window = model.config.max_position
    with recorded_forms() as forms:
        for decode in (False, True):
            run_largest_step(model, TritonStepOps(), CONFIG, window, decode=decode)
        run_sampled_steps(model, TritonStepOps(), CONFIG, window)
        run_drafted_steps(model, TritonStepOps(), CONFIG, window)
    return set(forms)


def _fill(harness: Harness) -> None:
    """A long prompt, greedy and seeded rows, one that uses whatever there is, and a grammar. First with thresholds but
    nothing that is added to logits, then among others, then with a bias alone."""
    constrained = harness.add(prompt(9), GREEDY, max_tokens=5)
    harness.add(prompt(29), replace(SEEDED, logprobs=2), max_tokens=8, seed=3)
    harness.add(prompt(12), replace(SEEDED, top_k=5), max_tokens=3, seed=3)
    harness.add(prompt(4), LADEN, max_tokens=4, seed=8)
    harness.add(prompt(8), replace(GREEDY, logit_bias={5: 1.0}), max_tokens=6)
    constrained.matcher = AllowedTokens(tuple(range(3, 40)), harness.runner._model.config.vocab_size)  # type: ignore[attr-defined]


def _serve(harness: Harness, speculator: Speculator) -> int:
    """Run to the end, with drafts in steps that are followed at once where that is possible. Returns the number of
    steps that were."""
    followed = 0
    while True:
        in_flight = harness.launched[-1][0] if harness.launched else None
        drafted = in_flight is not None and in_flight.draft_tokens > 0
        harness.speculator = None if drafted else speculator
        if not harness.step():
            return followed
        newest = harness.launched[-1][0] if harness.launched else None
        followed += drafted and newest is not in_flight


@pytest.mark.skipif(DEVICE.type == "cuda", reason="forms are recorded under the interpreter")
@pytest.mark.parametrize(
    ("family", "keys", "graphs"),
    [
        ("qwen3", {"num_hidden_layers": 1}, True),
        ("deepseek_v2", {"num_hidden_layers": 1}, False),
        ("qwen3_5", {"num_hidden_layers": 2, "full_attention_interval": 2}, False),
    ],
)
def test_service_launches_no_kernel_in_a_new_form(
    tmp_path: Path, family: TinyFamily, keys: dict[str, object], graphs: bool
) -> None:
    folder = make_checkpoint(tmp_path / "model", family, **keys)
    alone = Harness(load_tiny(folder), max_running=3)
    _fill(alone)
    expected = dict(alone.run())
    model = load_on(TritonOps(DEVICE, torch.float16), folder)
    warm = _warm_up(model)
    make_runner = runners(TritonStepOps, graphs=graphs, drafts=True)
    answers = {name: generated.tokens for name, generated in expected.items()}
    speculator = Speculator([Coin(Oracle(answers, wrong_every=5))], FixedDepth(4))
    with recorded_forms() as captured:
        harness = Harness(model, max_running=3, step_tokens=36, chunk_tokens=20, make_runner=make_runner)
    _fill(harness)
    with recorded_forms() as served:
        followed = _serve(harness, speculator)
    assert sum(usage_of(generated).accepted_draft_tokens for generated in harness.results.values()) > 0
    assert followed or model.config.linear is not None
    new = set(served) - set(captured) - warm
    assert not new, "\n".join(map(str, sorted(new)))


@pytest.mark.parametrize(
    ("config", "window", "shapes"),
    [
        (CONFIG, 500, [(1, 16), (1, 1)]),
        (CONFIG, 9, [(1, 7), (1, 1)]),
        (SchedulerConfig(max_running=3, step_tokens=40, chunk_tokens=5), 500, [(1, 4), (1, 1)]),
        (SchedulerConfig(max_running=3, step_tokens=40, chunk_tokens=1), 500, []),
        (SchedulerConfig(max_running=64, step_tokens=4096, chunk_tokens=512), 500, [(3, 16), (1, 1)]),
        (SchedulerConfig(max_running=256, step_tokens=2048, chunk_tokens=512), 500, [(15, 16), (1, 1)]),
        (SchedulerConfig(max_running=256, step_tokens=2048, chunk_tokens=3), 500, [(32, 2), (1, 1)]),
    ],
)
def test_steps_with_drafts_have_as_many_as_fit(
    tiny_folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    config: SchedulerConfig,
    window: int,
    shapes: list[tuple[int, int]],
) -> None:
    ran: list[tuple[int, int]] = []

    def recorded(rows: int, drafts: int, *, groups: int, adapted: bool) -> StepPlan:
        ran.append((rows, drafts))
        return drafted_step(rows, drafts, groups=groups, adapted=adapted)

    monkeypatch.setattr(placement, "drafted_step", recorded)
    run_drafted_steps(load_reference(tiny_folders["llama"]), ReferenceStepOps(), config, window)
    assert ran == shapes
