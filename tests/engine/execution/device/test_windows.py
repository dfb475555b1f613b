"""A device's runner over KV in groups: the text of the same model that keeps all blocks."""

from functools import cache
from pathlib import Path

import pytest

from engine.checkpoints.checkpoint import open_checkpoint
from engine.memory.window_groups import num_held_blocks
from engine.models.kv_groups import KVGroups, group_layers
from engine.speculation import FixedDepth, Speculator
from tests.engine.execution.device.harness import (
    DRAFT_GRAPHS,
    REFERENCE,
    REFERENCE_GRAPHS,
    TRITON,
    TRITON_DRAFT_GRAPHS,
    load_reference,
    load_triton,
)
from tests.engine.execution.draft_cases import Oracle, usage_of
from tests.engine.execution.harness import Harness, MakeRunner, load_tiny, prompt
from tests.support.tiny_models import make_checkpoint

LENGTHS = (1, 16, 17, 40, 70, 100)
NEW_TOKENS = 24
TOGGLES: dict[str, dict[str, int]] = {
    "plain": {"num_blocks": 1000},
    "chunked": {"num_blocks": 1000, "step_tokens": 64, "chunk_tokens": 5},
    "tiny pool": {"max_running": 11},
    "preempted": {"num_blocks": 1000},
}


def groups_of(folder: Path) -> KVGroups:
    config = open_checkpoint(folder).config
    return group_layers(config.kv_windows, config.max_position, config.kv_heads)


def grouped(folder: Path, make_runner: MakeRunner, **settings: object) -> Harness:
    groups = groups_of(folder)
    assert groups.windows[1:]
    load = load_triton if make_runner in (TRITON, TRITON_DRAFT_GRAPHS) else load_reference
    return Harness(load(folder, groups), make_runner=make_runner, windows=groups.windows[1:], **settings)  # type: ignore[arg-type]


@cache
def expected(folder: Path, length: int, seed: int) -> list[int]:
    keeping = Harness(load_tiny(folder))
    keeping.add(prompt(length, seed), max_tokens=NEW_TOKENS)
    return keeping.run()["0"].tokens


@pytest.fixture(params=["gemma3", "gemma4_shared", "gpt_oss"])
def folder(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> Path:
    return tiny_folders[request.param]


@pytest.mark.parametrize("toggle", TOGGLES)
@pytest.mark.parametrize("make_runner", [REFERENCE, REFERENCE_GRAPHS], ids=["launched", "graphs"])
def test_text_in_a_batch(folder: Path, make_runner: MakeRunner, toggle: str) -> None:
    settings = {"num_blocks": 14 * len(groups_of(folder).windows)} | TOGGLES[toggle]
    batch = grouped(folder, make_runner, **settings)
    for index, length in enumerate(LENGTHS):
        batch.add(prompt(length, seed=index % 2), max_tokens=NEW_TOKENS)
    results = batch.run(preempt_every=3 if toggle == "preempted" else None)
    if toggle == "preempted":
        assert batch.scheduler.stats().preemptions_total > 0
    for index, length in enumerate(LENGTHS):
        assert results[str(index)].tokens == expected(folder, length, index % 2)


def test_text_after_a_prefix_hit(folder: Path) -> None:
    repeated = grouped(folder, REFERENCE_GRAPHS, num_blocks=1000)
    for _ in range(3):
        repeated.add(prompt(70), max_tokens=NEW_TOKENS)
        repeated.run()
    hits = [usage_of(generated).cached_tokens for generated in repeated.results.values()]
    assert hits == [0, 64, 64]
    assert all(each.tokens == expected(folder, 70, 0) for each in repeated.results.values())


def test_text_with_drafts(folder: Path) -> None:
    """Steps with drafts are replayed; nothing of a row is computed before its start, whose windows have passed."""
    answers = {str(index): expected(folder, length, index % 2) for index, length in enumerate(LENGTHS)}
    speculator = Speculator([Oracle(answers, wrong_every=5)], FixedDepth(3))
    drafting = grouped(folder, DRAFT_GRAPHS, num_blocks=1000, max_running=4, speculator=speculator)
    for index, length in enumerate(LENGTHS):
        drafting.add(prompt(length, seed=index % 2), max_tokens=NEW_TOKENS)
    results = drafting.run()
    assert {name: generated.tokens for name, generated in results.items()} == answers
    assert sum(usage_of(generated).accepted_draft_tokens for generated in results.values()) > 20
    launches = drafting.runner.launches
    assert launches is not None
    assert launches.replayed_total > 12
    assert launches.decode_total == 0


def test_a_window_holds_its_blocks_and_no_more(folder: Path) -> None:
    """The windows are 8 tokens; a step may be in flight."""
    windows = groups_of(folder).windows
    full = windows.count(None)
    alone = grouped(folder, REFERENCE_GRAPHS, num_blocks=1000, chunk_tokens=16)
    request = alone.add(prompt(200), max_tokens=40)
    decoding = 0
    while alone.step():
        if request.output_tokens and request.slot is not None:
            decoding += 1
            assert num_held_blocks(request) <= full * len(request.block_table) + 3 * (len(windows) - full)
    assert decoding > 20


def test_tritons_kernels_read_each_groups_blocks(tmp_path: Path) -> None:
    layers = ["sliding_attention", "full_attention"]
    folder = make_checkpoint(tmp_path / "model", "gemma3", num_hidden_layers=2, layer_types=layers)
    alone = grouped(folder, TRITON, num_blocks=20, max_running=1)
    alone.add(prompt(40), max_tokens=3)
    assert alone.run()["0"].tokens == expected(folder, 40, 0)[:3]


def test_tritons_kernels_verify_drafts_in_replays(tmp_path: Path) -> None:
    """Of rows with some and with none, next to the padding that takes what they leave."""
    layers = ["sliding_attention", "full_attention"]
    folder = make_checkpoint(tmp_path / "model", "gemma3", num_hidden_layers=2, layer_types=layers)
    answers = {str(index): expected(folder, 20 + index, index)[:6] for index in range(2)}
    speculator = Speculator([Oracle(answers, wrong_every=3)], FixedDepth(2))
    drafting = grouped(folder, TRITON_DRAFT_GRAPHS, num_blocks=30, max_running=2, speculator=speculator)
    for index in range(2):
        drafting.add(prompt(20 + index, seed=index), max_tokens=6 - 2 * index)
    results = drafting.run()
    assert [results[name].tokens for name in answers] == [answers["0"], answers["1"][:4]]
    assert sum(usage_of(generated).accepted_draft_tokens for generated in results.values()) > 1
    launches = drafting.runner.launches
    assert launches is not None
    assert (launches.decode_total, launches.replayed_total > 1) == (0, True)
