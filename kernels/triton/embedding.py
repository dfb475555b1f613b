"""Embedding lookup."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.tiles import MOVED_TILE, require_contiguous, warps_for


@triton.jit
def embed_kernel(table, token_ids, output, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Rows token_ids int64 [T] of table [V, WIDTH] into output [T, WIDTH].

    Grid (T, tiles of WIDTH). Oracle: `torch.nn.functional.embedding`, as `kernels.reference_ops.ReferenceOps.embed`.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    exists = column < WIDTH
    token = tl.load(token_ids + row)
    values = tl.load(table + token * WIDTH + column, mask=exists)
    tl.store(output + row * WIDTH + column, values, mask=exists)


def embed(table: Tensor, token_ids: Tensor) -> Tensor:
    """Embeddings [T, H] of token_ids int64 [T] from the table [V, H]."""
    require_contiguous(table, token_ids)
    rows, width = token_ids.shape[0], table.shape[1]
    output = torch.empty((rows, width), dtype=table.dtype, device=table.device)
    grid = (rows, triton.cdiv(width, MOVED_TILE))
    embed_kernel[grid](table, token_ids, output, WIDTH=width, TILE=MOVED_TILE, num_warps=warps_for(MOVED_TILE))
    return output
