"""Decode and extend attention: rows of all kinds, dtypes, head dimensions, windows; a row alone and among others."""

from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.checks import TOLERANCE, poisoned_memory, share_that_differs, worst_row_error
from benchmarks.gpu.paged import Heads, PagedStep, in_fp8, make_step
from benchmarks.gpu.stage import Stage
from kernels import reference
from kernels.triton.attention import attend
from kernels.triton.plan import SPLIT_TOKENS, plan_from_metadata
from kernels.weights import KVScales

DRAFTED = 5
"""The most tokens of a row that is decoded."""

_SCALES = KVScales(key=0.37, value=1.9)

_SINKS_WINDOW = 128
"""That of gpt-oss."""

_MERGED_ROWS, _MERGED_LAYERS = 24, 20


def run(stage: Stage) -> None:
    """The measured head shape: every dtype, fp8, a window, sinks, rows that must not know of one another, and blocks
    with other layers in them."""
    heads = stage.scale.attention_heads
    for dtype in stage.scale.dtypes:
        _check(stage, heads, dtype)
    model_dtype = stage.scale.dtypes[0]
    _check(stage, heads, model_dtype, window=stage.scale.long_context // 3)
    _check(stage, heads, model_dtype, scales=_SCALES)
    _check(stage, heads, model_dtype, window=_SINKS_WINDOW, with_sinks=True)
    stage.attempt("a row alone", lambda: _check_alone(stage, heads, model_dtype))
    stage.attempt("mixed blocks", lambda: _check_mixed_blocks(stage, heads, model_dtype))
    stage.attempt("merged splits", lambda: _check_merges(stage, heads, model_dtype))


def run_dimensions(stage: Stage) -> None:
    """The other head dimensions."""
    model_dtype = stage.scale.dtypes[0]
    for heads in stage.scale.head_dims:
        _check(stage, heads, model_dtype)
        _check(stage, heads, model_dtype, scales=_SCALES)


def attended(
    step: PagedStep, window: int | None = None, scales: KVScales | None = None, sinks: Tensor | None = None
) -> Tensor:
    plan = plan_from_metadata(step.metadata, step.query.device, DRAFTED)
    with poisoned_memory():
        return attend(step.query, step.kv_layer, plan, window, scales or KVScales(key=1.0, value=1.0), sinks=sinks)


def expected_of(step: PagedStep, window: int | None = None, sinks: Tensor | None = None) -> Tensor:
    """In float32. The reference multiplies what no token sees by 0, which NaN would survive."""
    kv_layer = step.kv_layer.float().nan_to_num(0.0)
    return reference.attend(step.query.float(), kv_layer, step.metadata, window, sinks=sinks)


def rows_of(kind: str, long_context: int, chunk: int) -> tuple[list[int], list[int]]:
    """Query and context lengths: around the borders of blocks, tiles and splits, and rows of padding."""
    decode = [0, 1, 16, 17, SPLIT_TOKENS - 1, SPLIT_TOKENS, SPLIT_TOKENS + 1, long_context]
    if kind == "decode":
        return [1] * len(decode), decode
    drafts, chunks = [2, DRAFTED], [DRAFTED + 1, chunk, chunk]
    contexts = [*decode[:3], long_context, 40, SPLIT_TOKENS + 3, DRAFTED + 1, chunk, chunk + long_context // 2]
    return [1] * 4 + drafts + chunks, contexts


def _check(
    stage: Stage,
    heads: Heads,
    dtype: torch.dtype,
    window: int | None = None,
    scales: KVScales | None = None,
    *,
    with_sinks: bool = False,
) -> None:
    suffix = (f", window {window}" if window else "") + (", fp8 KV" if scales else "") + ", sinks" * with_sinks
    sinks = torch.linspace(-2.0, 4.0, heads.kv * heads.group, device=stage.device) if with_sinks else None
    for kind in ("decode", "mixed"):
        name = f"attention {kind}, {heads}, {str(dtype).removeprefix('torch.')}{suffix}"
        stage.attempt(name, partial(_check_step, stage, name, kind, heads, dtype, window, scales, sinks))


def _check_step(
    stage: Stage,
    name: str,
    kind: str,
    heads: Heads,
    dtype: torch.dtype,
    window: int | None,
    scales: KVScales | None,
    sinks: Tensor | None,
) -> None:
    lens, contexts = rows_of(kind, stage.scale.long_context, stage.scale.chunk)
    step = meant = make_step(lens, contexts, heads, dtype, stage.generator, window=window)
    if scales is not None:
        step, meant = in_fp8(step, scales)
    output = attended(step, window, scales, sinks)
    padding = [index for index, context in enumerate(contexts) if context == 0]
    assert padding == [0], "one row of padding, which is one token"
    assert not output[0].any(), "padding has to become 0"
    # The reference has no meaning for a row without a key: its softmax is NaN.
    stage.checked(name, worst_row_error(output[1:], expected_of(meant, window, sinks)[1:]), TOLERANCE[dtype])
    again = attended(step, window, scales, sinks)
    stage.checked(f"{name}, again", share_that_differs(again, output), 0.0, "must be the same")


def _check_alone(stage: Stage, heads: Heads, dtype: torch.dtype) -> None:
    lens, contexts = rows_of("mixed", stage.scale.long_context, stage.scale.chunk)
    step = make_step(lens, contexts, heads, dtype, stage.generator)
    together = attended(step).split(lens)
    for row, mine in enumerate(together):
        alone = attended(step.only_row(row))
        name = f"attention of {lens[row]} tokens of {contexts[row]} alone"
        largest = float((alone.float() - mine.float()).abs().max())
        stage.checked(name, share_that_differs(alone, mine), 0.0, f"the same as among others, differs by {largest:.3g}")


def _check_merges(stage: Stage, heads: Heads, dtype: torch.dtype) -> None:
    """Layers of one plan, each of which leaves its counters at 0. The last programs differ, and the results do not."""
    contexts = [1 + stage.rng.randrange(stage.scale.long_context) for _ in range(_MERGED_ROWS)]
    step = make_step([1] * len(contexts), contexts, heads, dtype, stage.generator)
    plan = plan_from_metadata(step.metadata, step.query.device, DRAFTED)
    with poisoned_memory():
        outputs = [attend(step.query, step.kv_layer, plan, None) for _ in range(_MERGED_LAYERS)]
    differ = max(share_that_differs(output, outputs[0]) for output in outputs[1:])
    stage.checked("merged splits of layers", differ, 0.0, f"{_MERGED_LAYERS} layers of {_MERGED_ROWS} rows")
    stage.checked("merged splits", worst_row_error(outputs[-1], expected_of(step)), TOLERANCE[dtype])
    stage.checked("counters after layers", float(plan.counters.any()), 0.0)


def _check_mixed_blocks(stage: Stage, heads: Heads, dtype: torch.dtype) -> None:
    lens, contexts = rows_of("mixed", stage.scale.long_context, stage.scale.chunk)
    step = make_step(lens, contexts, heads, dtype, stage.generator)
    for scales in (None, _SCALES):
        own = step if scales is None else in_fp8(step, scales)[0]
        differs = share_that_differs(attended(own.in_mixed_blocks(), scales=scales), attended(own, scales=scales))
        name = "attention in mixed blocks" + (", fp8 KV" if scales else "")
        stage.checked(name, differs, 0.0, "the same as in blocks of its own")
