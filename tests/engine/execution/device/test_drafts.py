"""The device's runner with drafts of any proposer gives the same text as the CPU without drafts."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from engine.models.transformer import Transformer
from engine.runtime.step_loop import DeviceClock, StepLoop
from engine.runtime.watchdog import Watchdog
from engine.speculation import FixedDepth, Speculator
from tests.engine.execution.device.harness import (
    DRAFT_GRAPHS,
    LADEN,
    ON_GPU,
    REFERENCE,
    TRITON,
    TRITON_DRAFT_GRAPHS,
    load_reference,
    load_triton,
)
from tests.engine.execution.draft_cases import (
    SEEDED,
    TOGGLES,
    Coin,
    Oracle,
    assert_same,
    mixed,
    proposer_of,
    usage_of,
    without,
)
from tests.engine.execution.harness import GREEDY, Harness, MakeRunner, load_tiny, prompt
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint


@cache
def model_of(folder: Path) -> Transformer:
    return load_reference(folder)


@pytest.mark.parametrize("toggle", TOGGLES)
@pytest.mark.parametrize("kind", ["toggled oracle", "nearly an oracle", "adversary"])
@pytest.mark.parametrize("make_runner", [REFERENCE, DRAFT_GRAPHS], ids=["launched", "graphs"])
def test_text_equals_the_cpus(tiny_folders: dict[str, Path], make_runner: MakeRunner, kind: str, toggle: str) -> None:
    folder = tiny_folders["llama"]
    expected = without(folder)
    speculator = Speculator([proposer_of(kind, expected)], FixedDepth(5))
    harness = Harness(model_of(folder), make_runner=make_runner, speculator=speculator, **TOGGLES[toggle])  # type: ignore[arg-type]
    mixed(harness)
    given = dict(harness.run(preempt_every=3 if toggle == "preempted" else None))
    assert_same(given, expected)
    accepted = sum(usage_of(generated).accepted_draft_tokens for generated in given.values())
    assert (accepted > 30) == (kind != "adversary")


def test_steps_with_drafts_are_replayed(tiny_folders: dict[str, Path]) -> None:
    """Rows with fewer drafts than others, or none, among them; padding takes the tokens that they leave."""

    def fill(harness: Harness) -> None:
        for index in range(5):
            harness.add(
                prompt(14 + index, seed=index), SEEDED if index % 2 else GREEDY, max_tokens=20 + index, seed=index
            )

    alone = Harness(load_tiny(tiny_folders["llama"]))
    fill(alone)
    expected = dict(alone.run())
    speculator = Speculator([proposer_of("nearly an oracle", expected)], FixedDepth(5))
    harness = Harness(model_of(tiny_folders["llama"]), make_runner=DRAFT_GRAPHS, speculator=speculator, max_running=2)
    fill(harness)
    assert_same(dict(harness.run()), expected)
    launches = harness.runner.launches
    assert launches is not None
    assert launches.replayed_total > 20
    assert launches.decode_total == 0


def test_a_device_that_is_ahead_at_times_draws_the_same(tiny_folders: dict[str, Path]) -> None:
    """Some steps are launched a step ahead, as nothing is drafted then; drafts come in between."""
    folder = tiny_folders["llama"]
    expected = without(folder)
    speculator = Speculator([proposer_of("nearly an oracle", expected)], FixedDepth(4))
    harness = Harness(model_of(folder), make_runner=REFERENCE)
    mixed(harness)
    steps = 0
    while harness.step():
        steps += 1
        harness.speculator = speculator if steps % 7 < 3 else None
    assert harness.most_in_flight == 2
    assert_same(harness.results, expected)
    assert sum(usage_of(generated).accepted_draft_tokens for generated in harness.results.values()) > 10


@pytest.mark.parametrize("kind", ["nearly an oracle", "adversary"])
@pytest.mark.parametrize("make_runner", [REFERENCE, DRAFT_GRAPHS], ids=["launched", "graphs"])
def test_steps_that_follow_drafts_in_flight_draw_the_same(
    tiny_folders: dict[str, Path], make_runner: MakeRunner, kind: str
) -> None:
    """Each step with drafts is followed by one that is launched before its result is known."""

    def fill(harness: Harness) -> None:
        for index in range(6):
            params = (GREEDY, SEEDED, replace(SEEDED, logprobs=1, stop_token_ids=tuple(range(40))))[index % 3]
            harness.add(prompt(11 + index, seed=index), params, max_tokens=24 + index, seed=index)

    folder = tiny_folders["llama"]
    alone = Harness(load_tiny(folder))
    fill(alone)
    expected = dict(alone.run())
    speculator = Speculator([proposer_of(kind, expected)], FixedDepth(5))
    harness = Harness(model_of(folder), make_runner=make_runner, max_running=4)
    fill(harness)
    assert _follow_drafts(harness, speculator) > 8
    assert_same(harness.results, expected)


def test_the_step_loop_is_ahead_of_steps_that_no_drafts_follow(tiny_folders: dict[str, Path]) -> None:
    """Prompts in chunks and drafts, which need the host to know a request's tokens; the text is that without drafts."""

    def fill(harness: Harness) -> None:
        for index in range(4):
            harness.add(
                prompt(90 + index, seed=index), SEEDED if index % 2 else GREEDY, max_tokens=20 + index, seed=index
            )

    folder = tiny_folders["llama"]
    alone = Harness(load_tiny(folder))
    fill(alone)
    expected = dict(alone.run())
    harness = Harness(model_of(folder), make_runner=REFERENCE, step_tokens=16, chunk_tokens=16, max_running=1)
    fill(harness)
    scheduler = harness.scheduler
    speculator = Speculator([proposer_of("nearly an oracle", expected)], FixedDepth(4))
    steps = StepLoop(scheduler, harness.runner, DeviceClock(), Watchdog(60.0, lambda: None), speculator)
    ahead = 0
    while steps.has_work:
        for delta in steps.step():
            harness.results[delta.request_id].tokens += delta.token_ids
            harness.results[delta.request_id].deltas.append(delta)
        ahead += scheduler.in_flight
        scheduler.check()
    assert_same(harness.results, expected)
    assert ahead > 4 * (90 // 16 - 1)
    assert sum(usage_of(generated).accepted_draft_tokens for generated in harness.results.values()) > 10


def _follow_drafts(harness: Harness, speculator: Speculator) -> int:
    """Run to the end with as many steps on drafts in flight as there can be; returns their number."""
    followed = 0
    while True:
        in_flight = harness.launched[-1][0] if harness.launched else None
        drafted = in_flight is not None and in_flight.draft_tokens > 0
        harness.speculator = None if drafted else speculator
        if not harness.step():
            return followed
        newest = harness.launched[-1][0] if harness.launched else None
        followed += drafted and newest is not in_flight


def _fill(harness: Harness) -> None:
    harness.add(prompt(19), GREEDY, max_tokens=9)
    harness.add(prompt(4), LADEN, max_tokens=9, seed=8)


@pytest.mark.parametrize("family", ["qwen3", "deepseek_v2"])
@pytest.mark.parametrize("make_runner", [TRITON, TRITON_DRAFT_GRAPHS, ON_GPU])
def test_tritons_kernels_verify_drafts(tmp_path: Path, make_runner: MakeRunner, family: TinyFamily) -> None:
    folder = make_checkpoint(tmp_path / "model", family, num_hidden_layers=1)
    alone = Harness(load_tiny(folder), max_running=3)
    _fill(alone)
    expected = dict(alone.run())
    answers = {name: generated.tokens for name, generated in expected.items()}
    speculator = Speculator([Coin(Oracle(answers, wrong_every=5))], FixedDepth(4))
    harness = Harness(load_triton(folder), max_running=3, make_runner=make_runner, speculator=speculator)
    _fill(harness)
    assert_same(dict(harness.run()), expected)
    assert any(usage_of(generated).accepted_draft_tokens for generated in harness.results.values())
    assert any(
        usage_of(generated).accepted_draft_tokens < usage_of(generated).draft_tokens
        for generated in harness.results.values()
    )


@pytest.mark.parametrize("make_runner", [TRITON, ON_GPU])
def test_tritons_kernels_follow_drafts_in_flight(tmp_path: Path, make_runner: MakeRunner) -> None:
    def fill(harness: Harness) -> None:
        harness.add(prompt(19), GREEDY, max_tokens=9)
        harness.add(prompt(4), SEEDED, max_tokens=9, seed=8)

    folder = make_checkpoint(tmp_path / "model", "qwen3", num_hidden_layers=1)
    alone = Harness(load_tiny(folder), max_running=3)
    fill(alone)
    expected = dict(alone.run())
    answers = {name: generated.tokens for name, generated in expected.items()}
    harness = Harness(load_triton(folder), max_running=3, make_runner=make_runner)
    fill(harness)
    assert _follow_drafts(harness, Speculator([Oracle(answers, wrong_every=5)], FixedDepth(4))) > 0
    assert_same(harness.results, expected)
