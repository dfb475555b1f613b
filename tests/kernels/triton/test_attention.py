"""Attention on a GPU against its meaning, under Triton's interpreter."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.triton import attention
from kernels.triton.attention import attend
from kernels.triton.merging import MERGED_SPLITS
from kernels.triton.plan import SPLIT_TOKENS, number_splits, plan_from_metadata
from kernels.weights import KVScales
from tests.kernels.triton.attention_cases import (
    FAR_AWAY,
    Heads,
    Step,
    in_fp8,
    in_mixed_blocks,
    make_step,
    only_row,
    with_room,
)

DRAFTED = 8
"""The most tokens of a row that is decoded."""

TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LONG = 2 * SPLIT_TOKENS + 75


def attended(step: Step, window: int | None = None, scales: KVScales | None = None) -> Tensor:
    plan = plan_from_metadata(step.metadata, step.query.device, DRAFTED)
    if scales is None:
        return attend(step.query, step.kv_layer, plan, window)
    return attend(step.query, step.kv_layer, plan, window, scales)


def check(step: Step, window: int | None = None) -> None:
    # The reference multiplies what no token sees by 0.
    expected = reference.attend(step.query, step.kv_layer.nan_to_num(0.0), step.metadata, window)
    assert expected.isfinite().all()
    tolerance = TOLERANCES[step.query.dtype]
    torch.testing.assert_close(attended(step, window), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dim", [32, 64, 80, 96, 128, 256, 512])
@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_any_head_dimension(dim: int, dtype: torch.dtype) -> None:
    check(make_step([1, 2, 20], [33, 17, 70], Heads(kv=1, group=2, dim=dim), dtype=dtype))


def test_heads_of_512_dimensions_over_several_splits() -> None:
    """Rows of several splits, and drafts of 8 heads, which take more than one tile."""
    lens, contexts = [1, 5, 9], [SPLIT_TOKENS + 75, SPLIT_TOKENS + 3, 20]
    step = make_step(lens, contexts, Heads(kv=1, group=8, dim=512), dtype=torch.bfloat16)
    check(step)
    for row, mine in enumerate(attended(step).split(lens)):
        assert torch.equal(attended(only_row(step, row)), mine)


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")  # the interpreter, on the broken head
@pytest.mark.parametrize("broken", [0, 1])
def test_heads_are_read_apart(broken: int) -> None:
    """Heads that do not fill a tile are padded, and not with what lies behind them."""
    step = make_step([1, 20], [33, 70], Heads(kv=2, group=2, dim=80))
    expected = attended(step).unflatten(1, (2, 2))[:, 1 - broken]
    step.kv_layer[:, :, :, broken] = math.nan
    assert torch.equal(attended(step).unflatten(1, (2, 2))[:, 1 - broken], expected)


@pytest.mark.parametrize("group", range(1, 9))
def test_any_group_of_query_heads(group: int) -> None:
    # 5 tokens of 8 heads are more packed rows than a tile has.
    check(make_step([1, 5, 19], [9, 40, 45], Heads(kv=1, group=group)))


@pytest.mark.parametrize("context", [1, 15, 16, 17, 64, 65, SPLIT_TOKENS, SPLIT_TOKENS + 1, LONG])
def test_contexts_of_decode_rows(context: int) -> None:
    check(make_step([1, 1], [context, 3], Heads()))


@pytest.mark.parametrize("window", [None, 5 * SPLIT_TOKENS])
def test_contexts_whose_splits_are_merged_in_groups(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    """The result does not depend on which programs are last, and the next layer finds the counters as this one did."""
    step = make_step([1, 1], [(MERGED_SPLITS + 2) * SPLIT_TOKENS - 9, 9], Heads(kv=1, dim=16), window=window)
    expected = reference.attend(step.query, step.kv_layer.nan_to_num(0.0), step.metadata, window)
    plan = plan_from_metadata(step.metadata, step.query.device, DRAFTED)
    results = []
    for programs in (1, 3):
        monkeypatch.setattr(attention, "programs_of", lambda *_, programs=programs: programs)
        results.append(attend(step.query, step.kv_layer, plan, window))
        assert not plan.counters.any()
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("tokens", [2, 4, 8])
@pytest.mark.parametrize("context", [8, SPLIT_TOKENS + 3])
def test_drafts_see_those_before_them(tokens: int, context: int) -> None:
    # Of a context of SPLIT_TOKENS + 3, the last split holds nothing that the first of 8 tokens may see.
    check(make_step([tokens], [context], Heads(kv=1, group=4)))


@pytest.mark.parametrize(("tokens", "context"), [(17, 17), (17, 100), (64, 64), (64, 80), (130, 130), (130, 333)])
def test_chunks(tokens: int, context: int) -> None:
    check(make_step([tokens], [context], Heads(kv=2, group=3), dtype=torch.float16))


@pytest.mark.parametrize("cap", [0.5, 50.0])
@pytest.mark.parametrize(("window", "scale"), [(None, 1.0), (40, 30.0)])
def test_softcaps(cap: float, window: int | None, scale: float) -> None:
    """Scores far below the cap, and far above it, in decode rows, drafts and chunks."""
    step = make_step([1, 4, 40], [SPLIT_TOKENS + 9, 33, 90], Heads(kv=1, group=2), window=window)
    step.query.mul_(scale)
    expected = reference.attend(step.query, step.kv_layer.nan_to_num(0.0), step.metadata, window, cap)
    plan = plan_from_metadata(step.metadata, step.query.device, DRAFTED)
    actual = attend(step.query, step.kv_layer, plan, window, cap=cap)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("cap", [None, 2.0])
def test_a_scale_in_place_of_the_root(cap: float | None) -> None:
    step = make_step([1, 4, 40], [SPLIT_TOKENS + 9, 33, 90], Heads(kv=1, group=2))
    scaled = step.query * (0.3 * math.sqrt(step.query.shape[-1]))
    plan = plan_from_metadata(step.metadata, step.query.device, DRAFTED)
    kv = step.kv_layer.nan_to_num(0.0)
    by_definition = reference.attend(step.query, kv, step.metadata, None, cap, scale=0.3)
    torch.testing.assert_close(by_definition, reference.attend(scaled, kv, step.metadata, None, cap))
    actual = attend(step.query, step.kv_layer, plan, None, cap=cap, scale=0.3)
    torch.testing.assert_close(actual, by_definition, rtol=2e-5, atol=2e-5)


def test_a_softcap_with_scaled_keys() -> None:
    step = make_step([1, 20], [33, 70], Heads(kv=1, group=2))
    plan = plan_from_metadata(step.metadata, step.query.device, DRAFTED)
    expected = attend(step.query, step.kv_layer, plan, None, cap=2.0)
    stored = step.kv_layer / torch.tensor([4.0, 0.5])[:, None, None]
    actual = attend(step.query, stored, plan, None, KVScales(key=4.0, value=0.5), 2.0)
    torch.testing.assert_close(actual, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("window", "cap", "dtype"),
    [
        (None, None, torch.float32),
        (40, None, torch.float16),
        (128, None, torch.bfloat16),
        (SPLIT_TOKENS, None, torch.float16),
        (None, 2.0, torch.float32),
    ],
)
def test_sinks(window: int | None, cap: float | None, dtype: torch.dtype) -> None:
    """Once a head, in rows of one split and of several, of drafts that see other splits, and of chunks; each sink far
    above the scores, far below them, or among them."""
    lens, contexts = [1, 1, 4, 40], [LONG, 9, 2 * SPLIT_TOKENS + 2, 90]
    step = make_step(lens, contexts, Heads(kv=2, group=2), dtype=dtype, window=window)
    sinks = torch.tensor([0.4, 6.0, -math.inf, -3.0])
    expected = reference.attend(step.query, step.kv_layer.nan_to_num(0.0), step.metadata, window, cap, sinks)
    plan = plan_from_metadata(step.metadata, step.query.device, DRAFTED)
    actual = attend(step.query, step.kv_layer, plan, window, cap=cap, sinks=sinks)
    tolerance = TOLERANCES[dtype] if cap is None else max(TOLERANCES[dtype], 2e-5)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    for row, mine in enumerate(actual.split(lens)):
        one = only_row(step, row)
        plan = plan_from_metadata(one.metadata, one.query.device, DRAFTED)
        assert torch.equal(attend(one.query, one.kv_layer, plan, window, cap=cap, sinks=sinks), mine)


def test_sinks_of_padding_and_of_scaled_values() -> None:
    step = make_step([1, 1, 20, 12], [0, 35, 30, 0], Heads(kv=1, group=2))
    sinks = torch.tensor([-1.0, 2.0])
    expected = reference.attend(step.query, step.kv_layer.nan_to_num(0.0), step.metadata, None, None, sinks)
    plan = plan_from_metadata(step.metadata, step.query.device, DRAFTED)
    stored = step.kv_layer / torch.tensor([4.0, 0.5])[:, None, None]
    actual = attend(step.query, stored, plan, None, KVScales(key=4.0, value=0.5), sinks=sinks)
    torch.testing.assert_close(actual[1:22], expected[1:22], rtol=2e-6, atol=2e-6)
    assert not actual[[0, *range(22, 34)]].any()


@pytest.mark.parametrize("window", [1, 16, 50, SPLIT_TOKENS, 5000])
def test_windows(window: int) -> None:
    # In the long rows, splits and tiles lie before the window: all NaN.
    lens, contexts = [1, 1, 3, 20, 70], [40, LONG, SPLIT_TOKENS + 2, 20, 200]
    check(make_step(lens, contexts, Heads(kv=1, group=2), dtype=torch.float16, window=window), window)


def test_rows_of_many_kinds_with_shared_blocks() -> None:
    lens, contexts = [1, 1, 4, 1, 9, 40], [70, LONG, 90, 64, 60, 104]
    check(make_step(lens, contexts, Heads(kv=2, group=4), dtype=torch.float16, shared_blocks=3))


def test_padding_rows_become_zero() -> None:
    step = make_step([1, 1, 2, 1, 30, 12], [0, 35, 0, 0, 30, 0], Heads())
    check(step)
    output = attended(step)
    assert not output[[0, 2, 3, 4]].any()
    assert not output[-12:].any()
    check(make_step([1, 1], [0, 0], Heads()))


@pytest.mark.parametrize("window", [None, 40])
def test_a_row_does_not_depend_on_its_neighbours(window: int | None) -> None:
    lens, contexts = [1, 6, 1, 1, 33, 150], [LONG, SPLIT_TOKENS + 40, 0, 9, 90, 150]
    step = make_step(lens, contexts, Heads(kv=1, group=3), dtype=torch.float16, window=window)
    together = attended(step, window).split(lens)
    for row, mine in enumerate(together):
        assert torch.equal(attended(only_row(step, row), window), mine)


def test_a_plan_holds_for_other_rows_within_its_numbers() -> None:
    """As a CUDA graph replays it: the same tensors with other contents, and room to spare."""
    step = make_step([1, 3, 20], [LONG, 30, 50], Heads(kv=1))
    plan = plan_from_metadata(step.metadata, step.query.device, DRAFTED)
    roomy = with_room(plan, splits=9, decode_queries=DRAFTED, extend_tokens=100)
    assert torch.equal(attend(step.query, step.kv_layer, roomy, None), attended(step))

    other = make_step([2, 2, 20], [SPLIT_TOKENS + 1, 5, 31], Heads(kv=1), seed=1)
    lines = torch.tensor([2, 0, 1])
    tables = torch.full((4, other.metadata.block_tables.shape[1]), FAR_AWAY, dtype=torch.int32)
    tables[lines] = other.metadata.block_tables.int()
    roomy = replace(roomy, block_tables=tables)
    roomy.row_slots.copy_(lines)
    roomy.query_starts.copy_(torch.tensor([0, 2, 4, 24]))
    roomy.context_lens.copy_(torch.tensor(other.metadata.context_lens))
    number_splits(roomy.context_lens[: roomy.decode_rows], roomy.split_starts, roomy.counters)
    assert torch.equal(attend(other.query, other.kv_layer, roomy, None), attended(other))


@pytest.mark.parametrize("dim", [64, 80])
def test_kv_in_fp8(dim: int) -> None:
    scales = KVScales(key=0.37, value=1.9)
    lens, contexts = [1, 1, 5, 30], [SPLIT_TOKENS + 20, 0, 21, 75]
    stored, meant = in_fp8(make_step(lens, contexts, Heads(dim=dim), dtype=torch.float16), scales)
    expected = reference.attend(meant.query, meant.kv_layer, meant.metadata, None)
    torch.testing.assert_close(attended(stored, scales=scales), expected, rtol=5e-3, atol=5e-3)
    by_definition = reference.attend(stored.query, stored.kv_layer, stored.metadata, None, scales=scales)
    torch.testing.assert_close(by_definition, expected, rtol=5e-3, atol=5e-3)


def test_layers_that_lie_apart_within_blocks() -> None:
    """A pool [N, L, 16, 2, Hkv, D] keeps all layers of a block together: each layer's blocks have gaps."""
    step = make_step([1, 20], [40, 50], Heads())
    pool = torch.full((len(step.kv_layer), 3, *step.kv_layer.shape[1:]), math.nan)
    pool[:, 1] = step.kv_layer
    check(Step(step.query, pool[:, 1], step.metadata))


@pytest.mark.parametrize(
    ("heads", "window"), [(Heads(kv=2, group=2, dim=32), 24), (Heads(kv=1, group=3, dim=80), None)], ids=str
)
def test_a_layer_of_a_pool_of_mixed_heads(heads: Heads, window: int | None) -> None:
    """Decode rows, drafts and chunks read a layer where it is, and the same numbers as from a pool of its own."""
    lens, contexts = [1, 1, 4, 20], [SPLIT_TOKENS + 9, 0, 33, 50]
    step = make_step(lens, contexts, heads, dtype=torch.bfloat16, window=window)
    mixed = in_mixed_blocks(step)
    assert mixed.kv_layer.stride(0) > mixed.kv_layer[0].numel()
    check(mixed, window)
    assert torch.equal(attended(mixed, window), attended(step, window))


def test_a_layer_in_fp8_of_a_pool_of_mixed_heads() -> None:
    scales = KVScales(key=0.37, value=1.9)
    stored, _ = in_fp8(make_step([1, 20], [40, 50], Heads(dim=32), dtype=torch.float16), scales)
    mixed = in_mixed_blocks(stored)
    assert torch.equal(attended(mixed, scales=scales), attended(stored, scales=scales))


def test_blocks_past_offsets_of_32_bits() -> None:
    """Offsets in a pool of more than 2**31 numbers, of which only the layer's are ever touched."""
    step = make_step([1, 20], [17, 40], Heads(kv=1, group=1, dim=16), dtype=torch.bfloat16)
    kv, tables = step.kv_layer, step.metadata.block_tables
    stride = 2**31 // int(tables[tables < FAR_AWAY].max()) // 16 * 16 + 16
    pool = torch.empty((len(kv) - 1) * stride + kv[0].numel(), dtype=kv.dtype)
    layer = pool.as_strided(kv.shape, (stride, *kv.stride()[1:]))
    layer.copy_(kv)
    check(Step(step.query, layer, step.metadata))


def test_large_scores_stay_finite() -> None:
    step = make_step([1, 20], [40, 50], Heads())
    check(Step(step.query * 1e4, step.kv_layer, step.metadata))


def test_layouts_that_kernels_do_not_read_are_refused() -> None:
    step = make_step([1], [5], Heads())
    with pytest.raises(ValueError, match="dense"):
        attended(Step(step.query, step.kv_layer.transpose(1, 2).contiguous().transpose(1, 2), step.metadata))
    with pytest.raises(ValueError, match="multiples of 16"):
        attended(make_step([1], [5], Heads(dim=72)))
    with pytest.raises(ValueError, match="512 dimensions at the most"):
        attended(make_step([1], [5], Heads(dim=528)))
    with pytest.raises(ValueError, match="130 KV heads times tiles of queries; 128 are counted"):
        attended(make_step([1], [5], Heads(kv=130, group=1, dim=16)))
    with pytest.raises(ValueError, match="do not go with"):
        attended(Step(step.query[:, :3].contiguous(), step.kv_layer, step.metadata))


@settings(max_examples=10)
@given(data=st.data())
def test_any_step(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(st.integers(1, 24), st.integers(0, 90)), min_size=1, max_size=4))
    rows.sort()
    lens = [tokens for tokens, _ in rows]
    contexts = [tokens + earlier for tokens, earlier in rows]
    heads = Heads(kv=data.draw(st.integers(1, 3)), group=data.draw(st.integers(1, 8)))
    window = data.draw(st.none() | st.integers(1, 120))
    dtype = data.draw(st.sampled_from(list(TOLERANCES)))
    step = make_step(lens, contexts, heads, dtype=dtype, window=window, seed=data.draw(st.integers(0, 99)))
    check(step, window)
