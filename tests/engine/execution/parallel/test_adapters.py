"""Adapters on ranks: their parts together change a step as the whole does in one process."""

from pathlib import Path

import numpy as np
import pytest

from engine.checkpoints.checkpoint import open_checkpoint
from engine.execution.parallel.adapters import adapted_sizes, cut_adapter
from engine.execution.parallel.rank_model import RankModel
from engine.execution.parallel.shards import ParallelSizes, places
from engine.models.kv_groups import one_group
from engine.models.loader import load_model
from engine.models.torch_model import TorchModel
from engine.models.transformer import Transformer
from kernels.adapters import AdapterWeights, LayerAdapter, LowRankPart
from kernels.arrays import FLOAT32, Array, int_array
from kernels.delta import StateRows
from kernels.host import StepRows
from tests.support.rank_threads import RankThreads, new_ops
from tests.support.tiny_adapters import random_adapter
from tests.support.tiny_families import FAMILIES

FEW = ("llama", "gemma4", "qwen3_5", "deepseek_v2")
CUTS = {"tp2": ParallelSizes(2), "tp4": ParallelSizes(4), "tp2-pp2": ParallelSizes(2, 2)}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_products_that_adapters_change_are_those_of_the_network(family: str, tiny_folders: dict[str, Path]) -> None:
    source = open_checkpoint(tiny_folders[family])
    config = source.config
    model = load_model(source, new_ops(), config.max_position, groups=one_group(config.kv_layers))
    assert isinstance(model, Transformer)
    assert adapted_sizes(config) == model.adapted_sizes


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("family", FEW)
def test_a_step_with_an_adapter(family: str, cut: str, tiny_folders: dict[str, Path]) -> None:
    source = open_checkpoint(tiny_folders[family])
    config = source.config
    adapter = random_adapter(adapted_sizes(config), seed=3)
    model = load_model(source, new_ops(), config.max_position, groups=one_group(config.kv_layers))
    assert isinstance(model, Transformer)
    whole, ranks = TorchModel(model), RankThreads(source, CUTS[cut])
    whole.allocate_adapters(1)
    whole.put_adapter(0, whole.pack_adapter(adapter))

    def prepare(rank: RankModel) -> None:
        rank.allocate_kv(3)
        rank.allocate_adapters(1)
        rank.put_adapter(0, cut_adapter(adapter, config, rank.place))
        if config.linear is not None:
            rank.allocate_states(2)

    ranks.on_all(prepare)
    states = None
    if config.linear is not None:
        none = np.empty((0, 3), np.int64)
        states = StateRows(whole.allocate_states(2), int_array([0, 1]), int_array([0, 0]), none)
    tables, tokens = int_array([[0, 1], [2, 2]]), np.arange(40, 70)
    lens = int_array([18, 12])
    rows = StepRows(tables, lens, lens, states, adapters=int_array([0, -1]))
    expected = whole.forward(tokens, rows, whole.allocate_kv(3))
    found = ranks.on_all(lambda rank: rank.forward(tokens, rows, None))[0]
    np.testing.assert_allclose(found, expected, atol=1e-3, rtol=1e-3)
    plain = StepRows(tables, lens, lens, states)
    without = ranks.on_all(lambda rank: rank.forward(tokens, plain, None))[0]
    assert np.abs(without[:18] - expected[:18]).max() > 0.1, "the adapter changes nothing"
    ranks.close()


def test_a_part_of_a_fused_product_keeps_its_place(tiny_folders: dict[str, Path]) -> None:
    """One part for queries, keys and values together, and one for some keys and values alone."""
    config = open_checkpoint(tiny_folders["llama"]).config
    random = np.random.default_rng(0)

    def part(rows: range) -> LowRankPart:
        shape = (len(rows), 2)
        return LowRankPart(_floats(random, (2, 64)), _floats(random, shape), rows.start)

    for rows in (range(128), range(64, 128), range(70, 100)):
        fused = part(rows)
        adapter = AdapterWeights([LayerAdapter(qkv=(fused,)), LayerAdapter()])
        product = np.zeros((128, 64), FLOAT32)
        product[rows.start : rows.stop] = fused.up @ fused.down
        for place in places(ParallelSizes(2)):
            mine = np.concatenate([np.arange(32) + 32 * place.part, 64 + np.arange(16) + 16 * place.part])
            mine = np.concatenate([mine, 96 + np.arange(16) + 16 * place.part])
            found = np.zeros((64, 64), FLOAT32)
            for each in cut_adapter(adapter, config, place).layers[0].qkv:
                found[each.first : each.first + len(each.up)] += each.up @ each.down
            np.testing.assert_allclose(found, product[mine], rtol=1e-6)


def _floats(random: np.random.Generator, shape: tuple[int, int]) -> Array:
    return random.standard_normal(shape).astype(FLOAT32)
