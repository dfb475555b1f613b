"""Gemma 4 on the device's runner: layers with heads of their own in one pool, through chunks, prefix hits, preemption,
drafts and replays."""

from functools import cache
from pathlib import Path

import pytest

from engine.models.transformer import Transformer
from engine.speculation import FixedDepth, Speculator
from tests.engine.execution.device.harness import DRAFT_GRAPHS, REFERENCE, TRITON_GRAPHS, load_reference, load_triton
from tests.engine.execution.draft_cases import TOGGLES, assert_same, mixed, proposer_of, without
from tests.engine.execution.harness import GREEDY, Harness, MakeRunner, prompt
from tests.support.tiny_families import TinyFamily

FAMILIES: tuple[TinyFamily, ...] = ("gemma4", "gemma4_moe", "gemma4_shared")


@cache
def model_of(folder: Path) -> Transformer:
    return load_reference(folder)


@pytest.mark.parametrize("toggle", TOGGLES)
@pytest.mark.parametrize("family", FAMILIES)
def test_text_equals_the_cpus(tiny_folders: dict[str, Path], family: str, toggle: str) -> None:
    folder = tiny_folders[family]
    expected = without(folder)
    speculator = Speculator([proposer_of("nearly an oracle", expected)], FixedDepth(3))
    settings = TOGGLES[toggle]
    harness = Harness(model_of(folder), make_runner=DRAFT_GRAPHS, speculator=speculator, **settings)  # type: ignore[arg-type]
    mixed(harness)
    assert_same(dict(harness.run(preempt_every=3 if toggle == "preempted" else None)), expected)


@pytest.mark.parametrize("family", ["gemma4", "gemma4_shared"])
def test_text_by_the_kernels(tiny_folders: dict[str, Path], family: str) -> None:
    def answers(model: Transformer, make_runner: MakeRunner) -> list[list[int]]:
        harness = Harness(model, make_runner=make_runner, max_running=2, chunk_tokens=17)
        for length in (21, 5):
            harness.add(prompt(length), GREEDY, max_tokens=4)
        return [generated.tokens for generated in harness.run().values()]

    folder = tiny_folders[family]
    assert answers(load_triton(folder), TRITON_GRAPHS) == answers(model_of(folder), REFERENCE)
