"""Latent attention on a GPU against its meaning, under Triton's interpreter."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import reference_latent
from kernels.layout import BLOCK_TOKENS
from kernels.ops import RopeRows
from kernels.reference_ops import ReferenceLinear
from kernels.triton.by_head import HeadLinears
from kernels.triton.latent_store import rotate_and_store_latents
from kernels.triton.latents import attend_latents
from kernels.triton.plan import SPLIT_TOKENS as PLANNED_SPLIT_TOKENS
from kernels.triton.plan import number_splits, plan_from_metadata
from kernels.triton.tuning_latents import JOINED_SPLITS
from tests.kernels.triton.attention_cases import FAR_AWAY, Latents, Step, latent_step, only_row, with_room
from tests.support.kernel_tensors import DEVICE, DTYPES, assert_close, random

DRAFTED = 8
"""The most tokens of a row that is decoded."""

SCALE = 0.11
"""Of scores: not the one that the dimensions of a key suggest."""

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SPLIT_TOKENS = JOINED_SPLITS * PLANNED_SPLIT_TOKENS
LONG = 2 * SPLIT_TOKENS + 75


def attended(step: Step, shape: Latents) -> Tensor:
    plan = plan_from_metadata(step.metadata, step.query.device, DRAFTED)
    return attend_latents(step.query, step.kv_layer, plan, shape.rotated, SCALE)


def check(lens: list[int], contexts: list[int], shape: Latents, dtype: torch.dtype = torch.float32) -> None:
    step = latent_step(lens, contexts, shape, dtype)
    # The reference multiplies what no token sees by 0.
    kv = step.kv_layer.nan_to_num(0.0)
    expected = reference_latent.attend_latents(step.query, kv, step.metadata, shape.rotated, SCALE)
    assert expected.isfinite().all()
    actual = attended(step, shape)
    torch.testing.assert_close(actual, expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [Latents(16, 64, 512), Latents(5, 8, 24), Latents(3, 32, 48)], ids=str)
def test_any_dimensions(shape: Latents, dtype: torch.dtype) -> None:
    check([1, 2, 9], [33, 17, 20], shape, dtype)


@pytest.mark.parametrize("heads", [1, 16, 20, 40])
def test_any_number_of_heads(heads: int) -> None:
    """Fewer than a tile of packed rows has, as many, and more."""
    check([1, 2, 9], [9, 20, 25], Latents(heads))


@pytest.mark.parametrize("context", [1, 16, 31, 33, SPLIT_TOKENS, SPLIT_TOKENS + 1, LONG])
def test_contexts_of_decode_rows(context: int) -> None:
    check([1, 1], [context, 3], Latents())


def test_rows_of_any_number_of_splits() -> None:
    """Those with an odd number of the plan's splits leave one unused, and rows of padding theirs."""
    contexts = [300, 0, 1, SPLIT_TOKENS, 0, 260, SPLIT_TOKENS + 300]
    step = latent_step([1] * 7, contexts, Latents(2), torch.float32)
    output = attended(step, Latents(2))
    assert torch.equal(output[-1:], attended(only_row(step, 6), Latents(2)))
    assert not output[[1, 4]].any()
    there = [row for row, context in enumerate(contexts) if context]
    kv = step.kv_layer.nan_to_num(0.0)
    meant = reference_latent.attend_latents(step.query, kv, step.metadata, 16, SCALE)
    torch.testing.assert_close(output[there], meant[there], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("tokens", "context"), [(2, 8), (8, 8), (8, SPLIT_TOKENS + 3)])
def test_drafts_see_those_before_them(tokens: int, context: int) -> None:
    check([tokens], [context], Latents(5))


@pytest.mark.parametrize(("tokens", "context"), [(17, 17), (33, 100), (130, 333)])
def test_chunks(tokens: int, context: int) -> None:
    check([tokens], [context], Latents(3), torch.bfloat16)


def test_padding_rows_become_zero() -> None:
    lens, contexts = [1, 1, 2, 30, 12], [0, 35, 0, 30, 0]
    output = attended(latent_step(lens, contexts, Latents(), torch.float32), Latents())
    assert output.isfinite().all()
    assert not output[[0, 2, 3]].any()
    assert not output[-12:].any()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Nor on the tile that its neighbours' drafts ask for."""
    lens, contexts, shape = [1, 3, 1, 12], [SPLIT_TOKENS + 40, 37, 9, 50], Latents(12)
    step = latent_step(lens, contexts, shape, torch.bfloat16)
    for row, mine in enumerate(attended(step, shape).split(lens)):
        assert torch.equal(attended(only_row(step, row), shape), mine)


def test_a_tokens_result_does_not_depend_on_its_chunk() -> None:
    step, shape = latent_step([40], [90], Latents(), torch.bfloat16), Latents()
    whole = attended(step, shape)
    metadata = type(step.metadata)(step.metadata.block_tables, [21], [71])
    assert torch.equal(attended(Step(step.query[:21].clone(), step.kv_layer, metadata), shape), whole[:21])


def test_a_plan_holds_for_other_rows_within_its_numbers() -> None:
    """As a CUDA graph replays it: the same tensors with other contents, and room to spare."""
    shape = Latents()
    step = latent_step([1, 3, 20], [SPLIT_TOKENS + 75, 30, 50], shape, torch.float32)
    plan = plan_from_metadata(step.metadata, step.query.device, DRAFTED)
    roomy = with_room(plan, splits=9, decode_queries=DRAFTED, extend_tokens=100)
    again = attend_latents(step.query, step.kv_layer, roomy, shape.rotated, SCALE)
    assert torch.equal(again, attended(step, shape))

    other = latent_step([2, 2, 20], [SPLIT_TOKENS + 1, 5, 31], shape, torch.float32, seed=1)
    lines = torch.tensor([2, 0, 1])
    tables = torch.full((4, other.metadata.block_tables.shape[1]), FAR_AWAY, dtype=torch.int32)
    tables[lines] = other.metadata.block_tables.int()
    roomy = replace(roomy, block_tables=tables)
    roomy.row_slots.copy_(lines)
    roomy.query_starts.copy_(torch.tensor([0, 2, 4, 24]))
    roomy.context_lens.copy_(torch.tensor(other.metadata.context_lens))
    number_splits(roomy.context_lens[: roomy.decode_rows], roomy.split_starts, roomy.counters)
    again = attend_latents(other.query, other.kv_layer, roomy, shape.rotated, SCALE)
    assert torch.equal(again, attended(other, shape))


def test_layers_that_lie_apart_within_blocks() -> None:
    shape = Latents()
    step = latent_step([1, 20], [40, 50], shape, torch.float32)
    pool = torch.full((len(step.kv_layer), 3, *step.kv_layer.shape[1:]), math.nan)
    pool[:, 1] = step.kv_layer
    apart = Step(step.query, pool[:, 1], step.metadata)
    assert torch.equal(attended(apart, shape), attended(step, shape))


def test_layouts_that_kernels_do_not_read_are_refused() -> None:
    shape = Latents()
    step = latent_step([1], [5], shape, torch.float32)
    with pytest.raises(ValueError, match="for queries of 48"):
        attended(replace(step, kv_layer=step.kv_layer.repeat(1, 1, 2, 1, 1)), shape)
    with pytest.raises(ValueError, match="multiples of 16"):
        attended(latent_step([1], [5], Latents(4, 16, 24), torch.float32), shape)
    with pytest.raises(ValueError, match="have gaps"):
        attended(replace(step, query=step.query.repeat(1, 2, 1)[:, ::2]), shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [Latents(40, 64, 512), Latents(5, 8, 24)], ids=str)
def test_rotate_and_store(shape: Latents, dtype: torch.dtype) -> None:
    tokens, blocks, dim = 4, 3, shape.rotated + 48
    query = random(tokens, shape.heads, dim, dtype=dtype)
    down = random(tokens, shape.rank + shape.rotated, dtype=dtype, seed=1)
    norm = random(shape.rank, dtype=dtype, seed=2)
    angles = random(tokens, 1, shape.rotated // 2, dtype=torch.float32, seed=3) * 3
    rope = RopeRows(angles.cos().to(dtype), angles.sin().to(dtype))
    slots = torch.tensor([40, 0, -1, 15], device=DEVICE)
    stored, expected_stored = (
        torch.full((blocks, 2, BLOCK_TOKENS, 1, 1, shape.rotated + shape.rank), math.nan, device=DEVICE).to(dtype)
        for _ in range(2)
    )
    expected = reference_latent.rotate_and_store_latents(query, down, norm, 1e-6, rope, expected_stored[:, 1], slots)
    output = torch.full((tokens, shape.heads, shape.rotated + shape.rank), 7.0, dtype=dtype, device=DEVICE)
    rotate_and_store_latents(query, down, norm, 1e-6, rope, stored[:, 1], slots, output)
    assert_close(output[:, :, : shape.rotated], expected)
    assert (output[:, :, shape.rotated :] == 7).all(), "the latent's dimensions are those of another kernel"
    assert_close(stored.nan_to_num(7.0), expected_stored.nan_to_num(7.0))
    assert int(stored.isfinite().sum()) == 3 * (shape.rotated + shape.rank)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 33, 140])
def test_products_by_head(rows: int, dtype: torch.dtype) -> None:
    """Of a part of each head's dimensions, into a part of the result's; a row alone gets the same numbers."""
    heads, inputs, outputs = 3, 72, 40
    weight = random(heads, outputs, inputs, dtype=dtype) / 8
    product = HeadLinears([ReferenceLinear(each, None) for each in weight])
    x = random(rows, heads, 16 + inputs, dtype=dtype, seed=1)
    output = torch.full((rows, heads, outputs + 8), 7.0, dtype=dtype, device=DEVICE)
    product.into(output[:, :, 8:], x[:, :, 16:])
    assert_close(output[:, :, 8:], reference_latent.by_head(x[:, :, 16:], weight))
    assert (output[:, :, :8] == 7).all()
    for row in range(0, rows, 50):
        alone = torch.empty((1, heads, outputs), dtype=dtype, device=DEVICE)
        product.into(alone, x[row : row + 1, :, 16:].clone())
        assert torch.equal(alone[0], output[row, :, 8:])


def test_products_of_heads_by_themselves() -> None:
    weight = random(3, 8, 16, dtype=torch.float32)
    products = HeadLinears([ReferenceLinear(each, None) for each in weight])
    x = random(2, 16, dtype=torch.float32, seed=1)
    assert len(products) == 3
    for linear, each in zip(products, weight, strict=True):
        assert torch.equal(linear(x), x @ each.T)
    assert [linear.out_features for linear in products[1:]] == [8, 8]
