"""The ranks of every family compute what one process does, in float32."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as BlockType

from engine.checkpoints.checkpoint import open_checkpoint
from engine.execution.parallel.shards import ParallelSizes
from engine.models.config import UnsupportedCheckpoint
from engine.models.sources import WeightSource
from kernels.arrays import int_array
from kernels.delta import StateRows
from kernels.host import HostColumns, StepRows
from tests.engine.models.quantization.folders import CASES, Case, write
from tests.engine.models.tiny_gguf import make_gguf
from tests.support.rank_threads import RankThreads, load_whole
from tests.support.tiny_families import FAMILIES
from tests.support.tiny_models import make_checkpoint
from tests.support.tiny_tokenizer import VOCAB_SIZE

SIZES = {"tp2": ParallelSizes(2), "tp4": ParallelSizes(4), "pp2": ParallelSizes(1, 2), "tp2-pp2": ParallelSizes(2, 2)}
REFUSED = {
    "gemma4_shared": "layer 3 attends to the KV of layer",
    "qwen3_next": "stage 0 has no layer with attention",
    "qwen3_5_moe": "stage 0 has no layer with attention",
}
"""Families whose tiny model cannot be cut into two stages."""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cut", SIZES)
def test_steps(family: str, cut: str, tiny_folders: dict[str, Path]) -> None:
    """A chunk of a prompt, a decode step and the next chunk."""
    source, sizes = open_checkpoint(tiny_folders[family]), SIZES[cut]
    if sizes.stages > 1 and family in REFUSED:
        with pytest.raises(UnsupportedCheckpoint, match=f"pipeline_parallel: .*{REFUSED[family]}"):
            RankThreads(source, sizes)
        return
    _compare_steps(source, sizes)


@pytest.mark.parametrize("cut", ["tp4", "tp2-pp2"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_steps_with_quantised_weights(case: Case, cut: str, tmp_path: Path) -> None:
    """They are expanded before they are cut, so that groups and scales need not be."""
    folder = make_checkpoint(tmp_path / "plain", "llama", hidden_size=256, intermediate_size=384, head_dim=64)
    write(tmp_path / "quantised", folder, case)
    _compare_steps(open_checkpoint(tmp_path / "quantised"), SIZES[cut])


@pytest.mark.parametrize("cut", ["tp2", "tp4"])
@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_steps_of_gguf_files(family: str, cut: str, tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    """Value heads of delta nets are in another order there."""
    path = make_gguf(tmp_path / "tiny.gguf", tiny_folders[family], BlockType.Q8_0)
    source = open_checkpoint(path)
    assert source.config.linear is None or source.config.linear.tiled
    _compare_steps(source, SIZES[cut])


def _compare_steps(source: WeightSource, sizes: ParallelSizes) -> None:
    model, ranks = load_whole(source), RankThreads(source, sizes)
    prompt = np.random.default_rng(0).integers(0, VOCAB_SIZE, 40)
    kv, _ = model.allocate_kv(4), ranks.on_all(lambda rank: rank.allocate_kv(4))
    states = None
    if model.config.linear is not None:
        memory, _ = model.allocate_states(1), ranks.on_all(lambda rank: rank.allocate_states(1))
        states = StateRows(memory, int_array([0]), int_array([0]), np.empty((0, 3), np.int64))
    for first, last in ((0, 37), (37, 38), (38, 40)):
        tokens = prompt[first:last]
        rows = StepRows(int_array([[1, 3, 2, 0]]), int_array([last - first]), int_array([last]), states)
        expected = model.forward(tokens, rows, kv)
        hidden = ranks.on_all(lambda rank, tokens=tokens, rows=rows: rank.forward(tokens, rows, None))[0]  # type: ignore[misc]
        np.testing.assert_allclose(hidden, expected, atol=2e-4, rtol=2e-4)
        logits = ranks.on_all(lambda rank, hidden=hidden: rank.logits(hidden.copy()))  # type: ignore[misc]
        np.testing.assert_allclose(logits[0], model.logits(expected), atol=1e-3, rtol=1e-3)
        assert all(each is None for each in logits[1:])
    columns = _columns(np.random.default_rng(1), len(expected))
    drawn = ranks.on_all(lambda rank: rank.draw(hidden.copy(), columns))[0]
    assert drawn is not None
    tokens, finite = drawn
    assert tokens.tolist() == model.ops.sample(logits[0].copy(), columns).tolist()
    assert all(finite)
    assert ranks.models[0].expert_tokens.tolist() == model.expert_tokens.tolist()
    ranks.close()


def _columns(random: np.random.Generator, draws: int) -> HostColumns:
    """Of draws with and without noise."""
    noise_scale = (np.arange(draws) % 2).astype(np.float32)
    return HostColumns(
        inverse_temperature=np.where(noise_scale, 0.3, 1).astype(np.float32),
        noise_scale=noise_scale,
        top_k=np.full(draws, VOCAB_SIZE, np.int64),
        top_p=np.ones(draws, np.float32),
        min_p=np.zeros(draws, np.float32),
        keys=random.integers(0, 1 << 32, (draws, 2)),
    )


@pytest.mark.parametrize("cut", ["tp2", "tp4"])
def test_draws_are_those_of_one_process(cut: str, tiny_folders: dict[str, Path]) -> None:
    """From the same logits: with noise, greedily, with equal logits in several parts, and from numbers that are not
    finite."""
    source = open_checkpoint(tiny_folders["llama"])
    ranks = RankThreads(source, SIZES[cut])
    random = np.random.default_rng(2)
    hidden = random.standard_normal((64, source.config.hidden_size)).astype(np.float32)
    hidden[8:16] = 0  # all logits are equal
    hidden[20, 3] = np.nan
    columns = _columns(random, len(hidden))
    logits = ranks.on_all(lambda rank: rank.logits(hidden.copy()))[0]
    found = ranks.on_all(lambda rank: rank.draw(hidden.copy(), columns))
    assert logits is not None
    assert found[0] is not None
    assert found[1:] == [None] * (len(found) - 1)
    tokens, finite = found[0]
    ops = ranks.models[0].model.ops
    assert finite.tolist() == ops.finite_rows(logits).tolist() == [row != 20 for row in range(64)]
    expected = ops.sample(logits.copy(), columns)
    assert [int(token) for row, token in enumerate(tokens) if row != 20] == np.delete(expected, 20).tolist()
    ranks.close()
