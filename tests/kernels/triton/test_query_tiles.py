"""Each tile of queries has a number, and attention of chunks launches a program a tile and at most one more a row."""

import math
from importlib import import_module
from itertools import accumulate
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import GridExecutor

from kernels.ops import AttentionMetadata
from kernels.triton.attention import attend
from kernels.triton.latents import attend_latents
from kernels.triton.plan import plan_from_metadata
from kernels.triton.query_tiles import query_tiles, row_and_tile_of
from kernels.triton.tuning import AttentionShape, extend_launch
from kernels.triton.tuning_latents import LatentShape, latent_extend_launch
from tests.kernels.triton.attention_cases import Heads, Latents, latent_step, make_step
from tests.support.kernel_tensors import DEVICE

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="counts what the interpreter runs")

LENS, CONTEXTS = [1, 1, 200, 9, 1, 64, 70], [30, 9, 200, 9, 40, 70, 90]
DECODE_ROWS = 2


@triton.jit
def numbered(query_starts, rows_and_tiles, first_row, rows, GROUP: tl.constexpr, TILE: tl.constexpr):
    """Each number's row and tile: rows_and_tiles int32 [numbers, 2]. Grid: (numbers,)."""
    row, tile = row_and_tile_of(tl.program_id(0), query_starts, first_row, rows, GROUP, TILE)
    tl.store(rows_and_tiles + 2 * tl.program_id(0), row)
    tl.store(rows_and_tiles + 2 * tl.program_id(0) + 1, tile)


@settings(max_examples=30)
@given(
    before=st.lists(st.integers(0, 3), max_size=3),
    lens=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    group=st.integers(1, 5),
    spare=st.integers(0, 40),
)
def test_each_tile_has_a_number(before: list[int], lens: list[int], group: int, spare: int) -> None:
    """Of rows behind others, in a step with room for more tokens."""
    tile = 16
    starts = torch.tensor([0, *accumulate(before + lens)], dtype=torch.int32, device=DEVICE)
    tiles = [(len(before) + row, at) for row, tokens in enumerate(lens) for at in range(-(-tokens * group // tile))]
    numbers = query_tiles(sum(lens) + spare, len(lens), group, tile)
    found = torch.empty(numbers, 2, dtype=torch.int32, device=DEVICE)
    numbered[(numbers,)](starts, found, len(before), len(lens), group, tile)
    assert [each for each in map(tuple, found.tolist()) if each in tiles] == tiles
    assert query_tiles(sum(lens), len(lens), group, tile) <= len(tiles) + len(lens)


def _counted(monkeypatch: pytest.MonkeyPatch, module: str, function: str) -> tuple[list[None], list[tuple[int, ...]]]:
    """The calls of a kernel's function, one for each program with work, and the grids of all launches."""
    calls: list[None] = []
    grids: list[tuple[int, ...]] = []
    kernels = import_module(module)
    real, launch = getattr(kernels, function), GridExecutor.__call__

    def called(*arguments: Any, **constants: Any) -> Any:
        calls.append(None)
        return real(*arguments, **constants)

    def launched(self: GridExecutor, *arguments: Any, **options: Any) -> Any:
        grids.append(self.grid)
        return launch(self, *arguments, **options)

    monkeypatch.setattr(kernels, function, called)
    monkeypatch.setattr(GridExecutor, "__call__", launched)
    return calls, grids


def _tiles(packed_of_a_token: int, tile: int) -> int:
    return sum(-(-tokens * packed_of_a_token // tile) for tokens in LENS[DECODE_ROWS:])


@interpreted
def test_chunks_take_a_program_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = Heads(kv=2, group=3)
    step = make_step(LENS, CONTEXTS, heads)
    plan = plan_from_metadata(step.metadata, step.query.device)
    calls, grids = _counted(monkeypatch, "kernels.triton.extend", "load_query")
    attend(step.query, step.kv_layer, plan, None)
    launch = extend_launch(AttentionShape(heads.kv, heads.group, heads.dim, 0, step.kv_layer.element_size()))
    useful = heads.kv * _tiles(heads.group, int(launch.constexprs["QUERY_TILE"]))
    assert len(calls) == useful
    assert useful <= math.prod(grids[-1]) <= useful + heads.kv * plan.extend_rows


@interpreted
def test_chunks_over_latents_take_a_program_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Latents()
    step = latent_step(LENS, CONTEXTS, shape, torch.float32)
    plan = plan_from_metadata(step.metadata, step.query.device)
    tables = step.metadata.block_tables[:DECODE_ROWS]
    decoded = plan_from_metadata(AttentionMetadata(tables, LENS[:DECODE_ROWS], CONTEXTS[:DECODE_ROWS]), DEVICE)
    calls, grids = _counted(monkeypatch, "kernels.triton.latent_attention", "_finish_softmax")
    attend_latents(step.query[:DECODE_ROWS], step.kv_layer, decoded, shape.rotated, 1.0)
    of_decode_rows = len(calls)
    calls.clear()
    attend_latents(step.query, step.kv_layer, plan, shape.rotated, 1.0)
    heads, dim = step.query.shape[1:]
    of = LatentShape(heads, shape.rotated, dim - shape.rotated, step.kv_layer.element_size())
    launch = latent_extend_launch(of)
    useful = _tiles(heads, int(launch.constexprs["QUERY_TILE"]))
    assert len(calls) - of_decode_rows == useful
    assert useful <= math.prod(grids[-1]) <= useful + plan.extend_rows
