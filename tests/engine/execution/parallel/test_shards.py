"""The parts of tensors: together they are the whole, and what cannot be cut is refused by name."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.checkpoints.checkpoint import open_checkpoint
from engine.execution.parallel.shards import (
    Cut,
    ParallelSizes,
    Place,
    cut_of,
    places,
    rank_config,
    stage_groups,
)
from engine.execution.parallel.sources import ShardedSource
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.kv_groups import KVGroups, group_layers
from engine.models.layout import check_tensors, expected_tensors
from engine.models.linear_attention import LinearAttentionConfig
from kernels.arrays import FLOAT32, Array
from tests.support.tiny_families import FAMILIES

SIZES = (ParallelSizes(2), ParallelSizes(4), ParallelSizes(1, 2), ParallelSizes(2, 2))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_of_all_ranks_are_the_whole(family: str, sizes: ParallelSizes, tiny_folders: dict[str, Path]) -> None:
    """Each number of a tensor is in a part, twice only where ranks share it, and a bias of sums is in one part."""
    config = open_checkpoint(tiny_folders[family]).config
    for name, shape in expected_tensors(config):
        whole = np.arange(1, 1 + np.prod(shape), dtype=FLOAT32).reshape(shape)
        gathered = np.zeros_like(whole)
        for place in places(sizes):
            found = cut_of(config, place, name, shape)
            if found is not None:
                _put_back(found[1], place, whole, gathered)
        np.testing.assert_array_equal(gathered, whole, err_msg=name)


def _put_back(cut: Cut, place: Place, whole: Array, gathered: Array) -> None:
    part = cut.of(whole, place)
    if cut.is_once:
        gathered += part
        return
    axes = [np.arange(size) for size in whole.shape]
    for axis, indices in enumerate(cut.indices):
        axes[axis] = axes[axis] if indices is None else indices
    where = np.ix_(*axes)
    np.testing.assert_array_equal(part, whole[where])
    gathered[where] = part


@pytest.mark.parametrize("family", FAMILIES)
def test_a_part_has_the_tensors_of_its_config(family: str, tiny_folders: dict[str, Path]) -> None:
    """Their names and shapes are those of a model of the part's config, but for rows of the vocabulary."""
    source, sizes = open_checkpoint(tiny_folders[family]), ParallelSizes(2)
    for place in places(sizes):
        part = ShardedSource(source, place)
        rows = len(place.head_rows(part.config.vocab_size))
        config = replace(part.config, vocab_size=rows, eos_token_ids=())
        check_tensors(
            replace(config, bos_token_id=None), {name: tensor.shape for name, tensor in part.tensors(FLOAT32)}
        )


def test_a_bias_of_sums_is_added_once() -> None:
    bias = np.ones(4, FLOAT32)
    parts = [Cut(is_once=True).of(bias, place) for place in places(ParallelSizes(4))]
    assert [part.tolist() for part in parts] == [[1.0] * 4] + [[0.0] * 4] * 3


@pytest.mark.parametrize(
    ("field", "sizes", "changes"),
    [
        ("num_heads 4", ParallelSizes(3), {}),
        ("intermediate_size 95", ParallelSizes(2), {"intermediate_size": 95}),
        ("num_kv_heads 3", ParallelSizes(2), {"num_heads": 6, "num_kv_heads": 3}),
        ("3 stages of 2 layers", ParallelSizes(1, 3), {}),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(
    field: str, sizes: ParallelSizes, changes: dict[str, int], tiny_folders: dict[str, Path]
) -> None:
    config = replace(open_checkpoint(tiny_folders["llama"]).config, **changes)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedCheckpoint, match=re.escape(field)):
        rank_config(config, Place(sizes, 0))


def test_the_groups_of_a_stage_keep_their_numbers(tiny_folders: dict[str, Path]) -> None:
    """Block tables are by group, and all stages have the same."""
    config = open_checkpoint(tiny_folders["gemma3"]).config
    groups = group_layers(config.kv_windows, config.max_position, config.kv_heads)
    assert groups == KVGroups((None, 8, 8, 8, 8, 8), 1, ((1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (0, 0)))
    first, second = (stage_groups(config, groups, place) for place in places(ParallelSizes(1, 2)))
    assert first == KVGroups(groups.windows, 1, ((1, 0), (2, 0), (3, 0)))
    assert second == KVGroups(groups.windows, 1, ((4, 0), (5, 0), (0, 0)))


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_value_heads_stay_with_their_key_heads(size: int, tiled: bool, tiny_folders: dict[str, Path]) -> None:
    """Also in the order of GGUF files, where neighbouring value heads have different key heads."""
    config = _with_linear(open_checkpoint(tiny_folders["qwen3_next"]).config, tiled=tiled)
    linear = config.linear
    assert linear is not None
    key_of = np.arange(8) % 2 if tiled else np.arange(8) // 4
    for place in places(ParallelSizes(size)):
        found = cut_of(config, place, "model.layers.0.linear_attn.A_log", (8,))
        channels = cut_of(config, place, "model.layers.0.linear_attn.in_proj_qkv.weight", (2 * 32 + 8 * 32, 64))
        assert found is not None
        assert channels is not None
        values, of_part = found[1].indices[0], rank_config(config, place).linear
        assert values is not None
        assert of_part is not None
        numbers = np.arange(of_part.value_heads)
        own_key = numbers % of_part.key_heads if tiled else numbers // (of_part.value_heads // of_part.key_heads)
        keys = channels[1].indices[0][: of_part.key_heads * 16 : 16] // 16  # type: ignore[index]
        np.testing.assert_array_equal(key_of[values], keys[own_key])


def _with_linear(config: ModelConfig, *, tiled: bool) -> ModelConfig:
    return replace(config, linear=LinearAttentionConfig(2, 8, 16, 32, 4, tiled))
