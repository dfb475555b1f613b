"""Models with recurrent layers on a device: the CPU's text, whatever happens to their states."""

from functools import cache
from pathlib import Path

import pytest

from engine.memory.state_pool import StateUse
from engine.models.transformer import Transformer
from engine.speculation import FixedDepth, Speculator
from tests.engine.execution.device.harness import REFERENCE, REFERENCE_GRAPHS, load_reference
from tests.engine.execution.draft_cases import TOGGLES, assert_same, mixed, proposer_of, usage_of, without
from tests.engine.execution.harness import Harness, MakeRunner


@cache
def model_of(folder: Path) -> Transformer:
    return load_reference(folder)


@pytest.mark.parametrize("toggle", TOGGLES)
@pytest.mark.parametrize("make_runner", [REFERENCE, REFERENCE_GRAPHS], ids=["launched", "graphs"])
def test_text_equals_the_cpus(tiny_folders: dict[str, Path], make_runner: MakeRunner, toggle: str) -> None:
    folder = tiny_folders["qwen3_5"]
    harness = Harness(model_of(folder), make_runner=make_runner, **TOGGLES[toggle])  # type: ignore[arg-type]
    mixed(harness)
    given = dict(harness.run(preempt_every=3 if toggle == "preempted" else None))
    assert_same(given, without(folder))
    assert harness.most_in_flight == 2
    assert harness.states is not None
    assert harness.states.count(StateUse.SNAPSHOT)


@pytest.mark.parametrize("toggle", TOGGLES)
@pytest.mark.parametrize("kind", ["toggled oracle", "adversary"])
def test_drafts_change_no_text(tiny_folders: dict[str, Path], kind: str, toggle: str) -> None:
    folder = tiny_folders["qwen3_5"]
    expected = without(folder)
    speculator = Speculator([proposer_of(kind, expected)], FixedDepth(5))
    harness = Harness(model_of(folder), make_runner=REFERENCE_GRAPHS, speculator=speculator, **TOGGLES[toggle])  # type: ignore[arg-type]
    mixed(harness)
    given = dict(harness.run(preempt_every=3 if toggle == "preempted" else None))
    assert_same(given, expected)
    accepted = sum(usage_of(generated).accepted_draft_tokens for generated in given.values())
    assert (accepted > 30) == (kind != "adversary")
