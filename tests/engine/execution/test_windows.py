"""Models with windows whose passed blocks are released: the greedy text is that of transformers, and the bits those of
the same model that keeps all blocks."""

from functools import cache
from pathlib import Path

import pytest

from engine.checkpoints.checkpoint import open_checkpoint
from engine.memory.window_groups import num_held_blocks
from engine.models.host_model import HostModel
from engine.models.kv_groups import KVGroups, group_layers
from engine.models.loader import host_model, load_model
from kernels.cpu.native.library import load
from kernels.cpu.native_ops import NativeOps
from tests.engine.execution.harness import Harness, load_tiny, prompt
from tests.support.tiny_models import reference_model, reference_text

LENGTHS = (1, 15, 16, 17, 40, 70, 100)
NEW_TOKENS = 24
BACKENDS = ("torch", "native", "native int8")


@pytest.fixture(params=["gemma2", "gemma3", "gemma4", "gemma4_moe", "gemma4_shared", "gpt_oss", "exaone4"])
def folder(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> Path:
    return tiny_folders[request.param]


def groups_of(folder: Path) -> KVGroups:
    config = open_checkpoint(folder).config
    return group_layers(config.kv_windows, config.max_position, config.kv_heads)


@cache
def loaded(folder: Path, backend: str, grouped: bool) -> HostModel:
    groups = groups_of(folder) if grouped else None
    if backend == "torch":
        return load_tiny(folder, groups=groups)
    if load() is None:
        pytest.skip("the native library is not built: make install, with a C++ compiler")
    checkpoint = open_checkpoint(folder)
    ops = NativeOps(2, int8_kv=backend == "native int8")
    return host_model(load_model(checkpoint, ops, checkpoint.config.max_position, groups=groups))


def harness(folder: Path, backend: str, **settings: object) -> Harness:
    windows = groups_of(folder).windows[1:]
    assert windows
    return Harness(loaded(folder, backend, True), windows=windows, **settings)  # type: ignore[arg-type]


@cache
def expected(folder: Path, backend: str, length: int, seed: int = 0) -> list[int]:
    """The text of the same model that keeps all blocks."""
    keeping = Harness(loaded(folder, backend, False))
    keeping.add(prompt(length, seed), max_tokens=NEW_TOKENS)
    return keeping.run()["0"].tokens


@pytest.mark.parametrize("chunk_tokens", [1, 7, 16, 33, 512])
def test_greedy_text_is_that_of_transformers(folder: Path, chunk_tokens: int) -> None:
    text = reference_text(reference_model(folder), prompt(100), NEW_TOKENS)
    alone = harness(folder, "torch", max_running=1, step_tokens=chunk_tokens, chunk_tokens=chunk_tokens)
    alone.add(prompt(100), max_tokens=NEW_TOKENS)
    assert alone.run()["0"].tokens == text


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("toggle", ["plain", "chunked", "tiny pool", "preempted", "no prefix cache"])
def test_greedy_text_in_a_batch(folder: Path, backend: str, toggle: str) -> None:
    groups = len(groups_of(folder).windows)
    settings: dict[str, dict[str, object]] = {
        "plain": {"num_blocks": 256 * groups},
        "chunked": {"num_blocks": 256 * groups, "step_tokens": 64, "chunk_tokens": 5},
        "tiny pool": {"num_blocks": 14 * groups, "max_running": 11},
        "preempted": {"num_blocks": 256 * groups},
        "no prefix cache": {"prefix_cache": False, "num_blocks": 40 * groups},
    }
    batch = harness(folder, backend, **settings[toggle])
    lengths = [LENGTHS[index % len(LENGTHS)] for index in range(len(LENGTHS))]
    for index, length in enumerate(lengths):
        batch.add(prompt(length, seed=index % 2), max_tokens=NEW_TOKENS)
    results = batch.run(preempt_every=3 if toggle == "preempted" else None)
    if toggle == "preempted":
        assert batch.scheduler.stats().preemptions_total > 0
    for index, length in enumerate(lengths):
        assert results[str(index)].tokens == expected(folder, backend, length, index % 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_greedy_text_after_a_prefix_hit(folder: Path, backend: str) -> None:
    repeated = harness(folder, backend, num_blocks=1000)
    for _ in range(3):
        repeated.add(prompt(70), max_tokens=NEW_TOKENS)
        repeated.run()
    hits = [generated.deltas[-1].usage.cached_tokens for generated in repeated.results.values()]  # type: ignore[union-attr]
    assert hits == [0, 64, 64]
    assert all(each.tokens == expected(folder, backend, 70) for each in repeated.results.values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_choices_of_one_call_have_the_text_of_each_alone(folder: Path, backend: str) -> None:
    call = harness(folder, backend, num_blocks=1000)
    parent = call.add(prompt(40), max_tokens=NEW_TOKENS)
    for _ in range(3):
        call.add(prompt(40), max_tokens=NEW_TOKENS, fork_of=parent)
    assert all(each.tokens == expected(folder, backend, 40) for each in call.run().values())


def test_a_window_holds_its_blocks_and_no_more(folder: Path) -> None:
    """The windows are 8 tokens: at most two blocks of each of their groups, and one that the next token may fill."""
    windows = groups_of(folder).windows
    full = windows.count(None)
    alone = harness(folder, "torch", num_blocks=1000, chunk_tokens=16)
    request = alone.add(prompt(200), max_tokens=40)
    while alone.step():
        if request.output_tokens:
            limit = full * len(request.block_table) + 3 * (len(windows) - full)
            assert num_held_blocks(request) <= limit
