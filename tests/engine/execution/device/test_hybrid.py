"""Models with recurrent layers on a device: the CPU's text, whatever happens to their states."""

from functools import cache
from pathlib import Path

import pytest

from engine.execution.device.runner import DeviceRunner
from engine.grammar.allowed import AllowedTokens
from engine.memory.state_pool import StateUse
from engine.models.transformer import Transformer
from engine.request import SamplingParams
from engine.scheduling.plan import StepPlan
from engine.speculation import FixedDepth, Speculator
from tests.engine.execution.device.harness import (
    DRAFT_GRAPHS,
    NEEDS_GPU,
    ON_GPU,
    REFERENCE,
    REFERENCE_GRAPHS,
    TRITON,
    TRITON_DRAFT_GRAPHS,
    TRITON_GRAPHS,
    load_reference,
    load_triton,
)
from tests.engine.execution.draft_cases import TOGGLES, Coin, Oracle, assert_same, mixed, proposer_of, usage_of, without
from tests.engine.execution.harness import GREEDY, Harness, MakeRunner, load_tiny, prompt
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint

SEEDED = SamplingParams(temperature=0.9, ignore_eos=True)


@cache
def model_of(folder: Path) -> Transformer:
    return load_reference(folder)


@pytest.mark.parametrize(
    ("make_runner", "toggle"),
    [(REFERENCE, "plain"), *((REFERENCE_GRAPHS, toggle) for toggle in TOGGLES)],
    ids=["launched-plain", *(f"graphs-{toggle}" for toggle in TOGGLES)],
)
def test_text_equals_the_cpus(tiny_folders: dict[str, Path], make_runner: MakeRunner, toggle: str) -> None:
    folder = tiny_folders["qwen3_5"]
    harness = Harness(model_of(folder), make_runner=make_runner, **TOGGLES[toggle])  # type: ignore[arg-type]
    mixed(harness)
    given = dict(harness.run(preempt_every=3 if toggle == "preempted" else None))
    assert_same(given, without(folder))
    assert harness.most_in_flight == 2
    assert harness.states is not None
    assert harness.states.count(StateUse.SNAPSHOT)


@pytest.mark.parametrize(
    ("kind", "toggle"), [*(("toggled oracle", toggle) for toggle in TOGGLES), ("adversary", "chunked")]
)
@pytest.mark.parametrize("make_runner", [REFERENCE_GRAPHS, DRAFT_GRAPHS], ids=["launched", "graphs"])
def test_drafts_change_no_text(tiny_folders: dict[str, Path], make_runner: MakeRunner, kind: str, toggle: str) -> None:
    folder = tiny_folders["qwen3_5"]
    expected = without(folder)
    speculator = Speculator([proposer_of(kind, expected)], FixedDepth(5))
    harness = Harness(model_of(folder), make_runner=make_runner, speculator=speculator, **TOGGLES[toggle])  # type: ignore[arg-type]
    mixed(harness)
    given = dict(harness.run(preempt_every=3 if toggle == "preempted" else None))
    assert_same(given, expected)
    accepted = sum(usage_of(generated).accepted_draft_tokens for generated in given.values())
    assert (accepted > 30) == (kind != "adversary")


@pytest.mark.parametrize("saved_states", [40, 0])
def test_steps_with_drafts_are_replayed(tiny_folders: dict[str, Path], saved_states: int) -> None:
    """Those that save states on the way, too, and those with a grammar, whose draws follow later."""
    folder = tiny_folders["qwen3_5"]

    def run(harness: Harness) -> Harness:
        for index in range(5):
            request = harness.add(prompt(14 + index, seed=index), SEEDED, max_tokens=24 + index, seed=index)
            if index % 2:
                request.matcher = AllowedTokens(tuple(range(3, 50)), model_of(folder).config.vocab_size)
        harness.run()
        return harness

    expected = run(Harness(load_tiny(folder), max_running=3)).results
    answers = {name: generated.tokens for name, generated in expected.items()}
    speculator = Speculator([Coin(Oracle(answers, wrong_every=4))], FixedDepth(4))
    drafting = Harness(
        model_of(folder), max_running=3, make_runner=DRAFT_GRAPHS, speculator=speculator, saved_states=saved_states
    )
    assert_same(run(drafting).results, expected)
    assert sum(usage_of(generated).accepted_draft_tokens for generated in drafting.results.values()) > 20
    launches = drafting.runner.launches
    assert launches is not None
    assert launches.decode_total == 0
    assert launches.replayed_total > 15


def tiny(root: Path, family: TinyFamily) -> Path:
    """One layer with a state and one with attention."""
    layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    heads = {"linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_value_head_dim": 16}
    experts = {"num_experts": 3} if family == "qwen3_next" else {}
    return make_checkpoint(root / "model", family, **layers, **heads, **experts)


def fill(harness: Harness) -> None:
    """A prompt in chunks whose state is saved on the way, a hit on it, and another."""
    parent = harness.add(prompt(19), GREEDY, max_tokens=5)
    harness.add(prompt(19), SEEDED, max_tokens=3, seed=7, fork_of=parent)
    harness.add(prompt(4), SEEDED, max_tokens=6, seed=8)


@pytest.mark.parametrize(
    ("family", "make_runner"),
    [("qwen3_5", TRITON_GRAPHS), ("qwen3_next", TRITON), pytest.param("qwen3_next", *ON_GPU.values, marks=NEEDS_GPU)],
)
def test_tritons_kernels_give_the_text_of_the_cpu(tmp_path: Path, family: TinyFamily, make_runner: MakeRunner) -> None:
    folder = tiny(tmp_path, family)
    alone = Harness(load_tiny(folder), max_running=2)
    fill(alone)
    expected = {name: generated.tokens for name, generated in alone.run().items()}
    harness = Harness(load_triton(folder), chunk_tokens=17, max_running=2, make_runner=make_runner)
    fill(harness)
    given = harness.run(preempt_every=4)
    assert {name: generated.tokens for name, generated in given.items()} == expected
    assert harness.scheduler.stats().cached_tokens_total > 0
    assert harness.scheduler.stats().preemptions_total > 0


@pytest.mark.parametrize("make_runner", [TRITON, TRITON_DRAFT_GRAPHS, ON_GPU])
def test_tritons_kernels_settle_drafts(tmp_path: Path, make_runner: MakeRunner) -> None:
    folder = tiny(tmp_path, "qwen3_5")
    alone = Harness(load_tiny(folder), max_running=2)
    fill(alone)
    expected = dict(alone.run())
    answers = {name: generated.tokens for name, generated in expected.items()}
    speculator = Speculator([Coin(Oracle(answers, wrong_every=4))], FixedDepth(4))
    harness = Harness(load_triton(folder), max_running=2, make_runner=make_runner, speculator=speculator)
    fill(harness)
    assert_same(dict(harness.run()), expected)
    launches = harness.runner.launches
    assert launches is not None
    assert make_runner is TRITON or launches.decode_total == 0
    drafted = [usage_of(generated) for generated in harness.results.values()]
    assert 0 < sum(usage.accepted_draft_tokens for usage in drafted) < sum(usage.draft_tokens for usage in drafted)


def test_steps_one_token_further_are_loaded_in_the_shorter_way(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those that save a state, which are replayed, too, and those after them."""
    ways = list[bool]()
    further = DeviceRunner._continue

    def recorded(self: DeviceRunner, plan: StepPlan) -> object:
        result = further(self, plan)
        ways.append(result is not None)
        return result

    monkeypatch.setattr(DeviceRunner, "_continue", recorded)
    harness = Harness(model_of(tiny_folders["qwen3_5"]), make_runner=REFERENCE_GRAPHS)
    harness.add(prompt(20), max_tokens=30)
    harness.run()
    assert ways == [False] * 2 + [True] * 10 + [False] * 2 + [True] * (len(ways) - 14)
    launches = harness.runner.launches
    assert launches is not None
    assert (launches.prefill_total, launches.decode_total) == (1, 0)
