"""Latent attention: rows of all kinds over paged latents, a row alone and among others; the kernels around it."""

import math
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.checks import TOLERANCE, poisoned_memory, share_that_differs, worst_row_error
from benchmarks.gpu.checks.attention import DRAFTED, rows_of
from benchmarks.gpu.paged import Heads, PagedStep, make_step
from benchmarks.gpu.scale import Latents
from benchmarks.gpu.stage import Stage
from kernels import reference_latent
from kernels.layout import BLOCK_TOKENS
from kernels.ops import RopeRows
from kernels.reference_ops import ReferenceLinear
from kernels.triton.by_head import HeadLinears
from kernels.triton.latent_store import rotate_and_store_latents
from kernels.triton.latents import attend_latents
from kernels.triton.plan import plan_from_metadata

_EPS = 1e-6


def run(stage: Stage) -> None:
    for latents in stage.scale.latents:
        for dtype in stage.scale.dtypes:
            named = f"{latents}, {str(dtype).removeprefix('torch.')}"
            for kind in ("decode", "mixed"):
                title = f"latent attention {kind}, {named}"
                stage.attempt(title, partial(_check_step, stage, title, kind, latents, dtype))
            title = f"products by head, {named}"
            stage.attempt(title, partial(_check_products, stage, title, latents, dtype))
            title = f"rotate and store latents, {named}"
            stage.attempt(title, partial(_check_store, stage, title, latents, dtype))
    latents, dtype = stage.scale.latents[0], stage.scale.dtypes[0]
    stage.attempt("latents of a row alone", partial(_check_alone, stage, latents, dtype))


def _step(stage: Stage, kind: str, latents: Latents, dtype: torch.dtype) -> tuple[PagedStep, list[int]]:
    lens, contexts = rows_of(kind, stage.scale.long_context, stage.scale.chunk)
    heads = Heads(1, latents.heads, latents.rotated + latents.rank)
    step = make_step(lens, contexts, heads, dtype, stage.generator)
    return PagedStep(step.query, step.kv_layer[:, :, :1].contiguous(), step.metadata), lens


def _attended(step: PagedStep, latents: Latents) -> Tensor:
    plan = plan_from_metadata(step.metadata, step.query.device, DRAFTED)
    with poisoned_memory():
        return attend_latents(step.query, step.kv_layer, plan, latents.rotated, _scale(latents))


def _scale(latents: Latents) -> float:
    return (latents.rotated + latents.rank) ** -0.5


def _check_step(stage: Stage, title: str, kind: str, latents: Latents, dtype: torch.dtype) -> None:
    step, _ = _step(stage, kind, latents, dtype)
    output = _attended(step, latents)
    assert not output[0].any(), "padding has to become 0"
    # The reference multiplies what no token sees by 0, and has no meaning for a row without a key.
    wide, kv = step.query.float(), step.kv_layer.float().nan_to_num(0.0)
    expected = reference_latent.attend_latents(wide, kv, step.metadata, latents.rotated, _scale(latents))
    stage.checked(title, worst_row_error(output[1:], expected[1:]), TOLERANCE[dtype])
    again = share_that_differs(_attended(step, latents), output)
    stage.checked(f"{title}, again", again, 0.0, "must be the same")


def _check_alone(stage: Stage, latents: Latents, dtype: torch.dtype) -> None:
    step, lens = _step(stage, "mixed", latents, dtype)
    for row, mine in enumerate(_attended(step, latents).split(lens)):
        alone = _attended(step.only_row(row), latents)
        largest = float((alone.float() - mine.float()).abs().max())
        detail = f"the same as among others, differs by {largest:.3g}"
        stage.checked(f"latents of row {row} alone", share_that_differs(alone, mine), 0.0, detail)


def _random(stage: Stage, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=stage.generator, device=stage.device).to(dtype)


def _check_products(stage: Stage, title: str, latents: Latents, dtype: torch.dtype) -> None:
    """Products that absorb queries, and those that make values."""
    for outputs, inputs in ((latents.rank, latents.key_dim), (latents.value_dim, latents.rank)):
        weight = _random(stage, latents.heads, outputs, inputs, dtype=dtype) / math.sqrt(inputs)
        product = HeadLinears([ReferenceLinear(each, None) for each in weight])
        for rows in stage.scale.checked_rows:
            x = _random(stage, rows, latents.heads, latents.rotated + inputs, dtype=dtype)[:, :, latents.rotated :]
            output, alone = x.new_empty((rows, latents.heads, outputs)), x.new_empty((1, latents.heads, outputs))
            with poisoned_memory():
                product.into(output, x)
                product.into(alone, x[-1:].clone())
            named = f"{title}, {inputs} to {outputs}, {rows} rows"
            expected = reference_latent.by_head(x.double(), weight.double())
            stage.checked(named, worst_row_error(output, expected), TOLERANCE[dtype])
            stage.checked(f"{named}: the last alone", share_that_differs(alone[0], output[-1]), 0.0, "must be the same")


def _check_store(stage: Stage, title: str, latents: Latents, dtype: torch.dtype) -> None:
    tokens, device = stage.scale.chunk, stage.device
    dim = latents.rotated + latents.rank
    query = _random(stage, tokens, latents.heads, latents.rotated + latents.key_dim, dtype=dtype)
    down, norm = _random(stage, tokens, dim, dtype=dtype), _random(stage, latents.rank, dtype=dtype)
    angles = 3 * _random(stage, tokens, latents.rotated // 2, dtype=torch.float32)
    rope = RopeRows(angles.cos().to(dtype), angles.sin().to(dtype), torch.arange(tokens, device=device).flip(0))
    num_blocks = tokens // BLOCK_TOKENS + 3
    slots = torch.randperm(num_blocks * BLOCK_TOKENS, generator=stage.generator, device=device)[:tokens]
    slots[tokens // 2] = -1
    stored = torch.full((num_blocks, BLOCK_TOKENS, 1, 1, dim), math.nan, dtype=dtype, device=device)
    output = query.new_empty((tokens, latents.heads, dim))
    with poisoned_memory():
        rotate_and_store_latents(query, down, norm, _EPS, rope, stored, slots, output)
    wide_rope, kept = RopeRows(rope.cos.double(), rope.sin.double(), rope.positions), stored.double()
    expected = reference_latent.rotate_and_store_latents(
        query.double(), down.double(), norm.double(), _EPS, wide_rope, kept, slots
    )
    written = slots[slots >= 0]
    actual = stored.flatten(0, 1)[written]
    stage.checked(title, worst_row_error(output[:, :, : latents.rotated], expected), TOLERANCE[dtype])
    stage.checked(f"{title}, what is kept", worst_row_error(actual, kept.flatten(0, 1)[written]), TOLERANCE[dtype])
    untouched = torch.ones(num_blocks * BLOCK_TOKENS, dtype=torch.bool, device=device)
    untouched[written] = False
    strays = stored.flatten(0, 1)[untouched].isfinite().double().mean()
    stage.checked(f"{title}, unassigned slots", float(strays), 0.0, "must be unchanged")
