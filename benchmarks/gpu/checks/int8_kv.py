"""KV in int8: attention over it, a row alone and among others, and keys and values as they are stored."""

from functools import partial

import torch

from benchmarks.gpu.checks import TOLERANCE, share_that_differs, worst_row_error
from benchmarks.gpu.checks.attention import attended, expected_of, rows_of
from benchmarks.gpu.paged import Heads, in_int8, make_step
from benchmarks.gpu.stage import Stage
from kernels import reference
from kernels.layout import BLOCK_TOKENS, int8_block_bytes
from kernels.ops import RopeRows
from kernels.reference_int8 import from_int8, numbers_of
from kernels.triton.rotary import rotate_and_store

_ROUNDED = 1.5e-2
"""Of a vector's norm. A step is a 127th of the largest number, of about three standard deviations; with the rounding of
the numbers before."""


def run(stage: Stage) -> None:
    dtype = stage.scale.dtypes[0]
    for heads in (stage.scale.attention_heads, *stage.scale.head_dims):
        for kind in ("decode", "mixed"):
            title = f"attention {kind}, {heads}, int8 KV"
            stage.attempt(title, partial(_check_step, stage, title, kind, heads, dtype))
        title = f"rotate and store in int8, {heads}"
        stage.attempt(title, partial(_check_store, stage, title, heads, dtype))
    stage.attempt("a row alone, int8 KV", partial(_check_alone, stage, stage.scale.attention_heads, dtype))


def _check_step(stage: Stage, title: str, kind: str, heads: Heads, dtype: torch.dtype) -> None:
    lens, contexts = rows_of(kind, stage.scale.long_context, stage.scale.chunk)
    step, meant = in_int8(make_step(lens, contexts, heads, dtype, stage.generator))
    output = attended(step)
    assert not output[0].any(), "padding has to become 0"
    # The reference has no meaning for a row without a key.
    stage.checked(title, worst_row_error(output[1:], expected_of(meant)[1:]), TOLERANCE[dtype])
    stage.checked(f"{title}, again", share_that_differs(attended(step), output), 0.0, "must be the same")


def _check_alone(stage: Stage, heads: Heads, dtype: torch.dtype) -> None:
    lens, contexts = rows_of("mixed", stage.scale.long_context, stage.scale.chunk)
    step, _ = in_int8(make_step(lens, contexts, heads, dtype, stage.generator))
    for row, mine in enumerate(attended(step).split(lens)):
        differs = share_that_differs(attended(step.only_row(row)), mine)
        title = f"attention of {lens[row]} tokens of {contexts[row]} in int8 alone"
        stage.checked(title, differs, 0.0, "the same as among others")


def _check_store(stage: Stage, title: str, heads: Heads, dtype: torch.dtype) -> None:
    """By what is read again, and by what is not the step's, which stays."""
    tokens, device = stage.scale.chunk, stage.device
    num_blocks = tokens // BLOCK_TOKENS + 2
    shape = (tokens, heads.kv * (heads.group + 2), heads.dim)
    qkv = torch.randn(shape, generator=stage.generator, device=device).to(dtype)
    angles = torch.randn(tokens, 1, heads.dim // 2, generator=stage.generator, device=device)
    rope = RopeRows(angles.cos().to(dtype), angles.sin().to(dtype))
    slots = torch.randperm(num_blocks * BLOCK_TOKENS, generator=stage.generator, device=device)[:tokens]
    blocks = torch.full((num_blocks, int8_block_bytes(heads.kv, heads.dim)), 99, dtype=torch.int8, device=device)
    query = rotate_and_store(qkv, None, rope, numbers_of(blocks, heads.kv, heads.dim), slots)
    kept = torch.zeros(num_blocks, BLOCK_TOKENS, 2, heads.kv, heads.dim, dtype=torch.float64, device=device)
    wide = RopeRows(rope.cos.double(), rope.sin.double())
    expected = reference.rotate_and_store(qkv.double(), None, wide, kept, slots)
    stage.checked(title, worst_row_error(query, expected), TOLERANCE[dtype])
    read = from_int8(blocks, heads.kv, heads.dim).flatten(0, 1)[slots]
    stage.checked(f"{title}, what is kept", worst_row_error(read, kept.flatten(0, 1)[slots]), _ROUNDED)
    untouched = torch.ones(num_blocks * BLOCK_TOKENS, dtype=torch.bool, device=device)
    untouched[slots] = False
    strays = numbers_of(blocks, heads.kv, heads.dim).flatten(0, 1)[untouched]
    stage.checked(f"{title}, unassigned slots", float((strays != 99).double().mean()), 0.0, "must be unchanged")
