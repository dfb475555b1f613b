"""Gemma 4 on the device's runner: layers with heads of their own in one pool, through chunks, prefix hits, preemption,
drafts and replays."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engine.models.transformer import Transformer
from engine.speculation import FixedDepth, Speculator
from tests.engine.execution.device.harness import DRAFT_GRAPHS, REFERENCE, TRITON_GRAPHS, load_reference, load_triton
from tests.engine.execution.draft_cases import SEEDED, TOGGLES, assert_same, mixed, proposer_of, usage_of, without
from tests.engine.execution.harness import GREEDY, Harness, MakeRunner, prompt
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint

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


LAYERS = ["sliding_attention", "full_attention", "full_attention"]
SHALLOW = {"num_hidden_layers": 2, "layer_types": LAYERS[:2]}
SHARED = {"num_hidden_layers": 3, "layer_types": LAYERS, "num_kv_shared_layers": 1}


@pytest.mark.parametrize(("family", "shape"), [("gemma4", SHALLOW), ("gemma4_moe", SHALLOW), ("gemma4_shared", SHARED)])
def test_text_by_the_kernels(family: TinyFamily, shape: dict[str, Any], tmp_path: Path) -> None:
    """Chunks, replays, a fork whose last block is copied, and a prefix hit."""

    def answers(model: Transformer, make_runner: MakeRunner) -> tuple[list[list[int]], int]:
        harness = Harness(model, make_runner=make_runner, max_running=2, chunk_tokens=17)
        parent = harness.add(prompt(21), GREEDY, max_tokens=4)
        harness.add(prompt(21), SEEDED, max_tokens=3, fork_of=parent)
        harness.run()
        harness.add(prompt(21), GREEDY, max_tokens=2)
        usage = usage_of(harness.run()["2"])
        return [generated.tokens for generated in harness.results.values()], usage.cached_tokens

    folder = make_checkpoint(tmp_path / family, family, **shape)
    texts, cached_tokens = answers(load_triton(folder), TRITON_GRAPHS)
    assert (texts, cached_tokens) == answers(load_reference(folder), REFERENCE)
    assert cached_tokens == 16
