"""Masks logits by a grammar's token bitmask. Oracle: `kernels.reference.mask_rows`."""

import triton
import triton.language as tl
from torch import Tensor

TILE = 2048


@triton.jit
def mask_rows_kernel(logits, rows, bitmask, logits_stride, bitmask_stride, vocab_size, TILE: tl.constexpr):
    """Set logits [R, V] of tokens whose bit is 0 to -inf: of row `rows[i]` (int64 [M]) by line i of the bitmask, int32
    [M, ceil(V / 32)]. Grid: (tiles of V, M)."""
    line = tl.program_id(1).to(tl.int64)
    row = tl.load(rows + line)
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = token < vocab_size
    words = tl.load(bitmask + line * bitmask_stride + token // 32, mask=inside, other=0)
    forbidden = ((words >> (token % 32)) & 1) == 0
    lowest = tl.full([TILE], float("-inf"), tl.float32).to(logits.dtype.element_ty)
    tl.store(logits + row * logits_stride + token, lowest, mask=inside & forbidden)


def mask_rows(logits: Tensor, rows: Tensor, bitmask: Tensor) -> None:
    """See the oracle, `kernels.reference.mask_rows`."""
    vocab_size = logits.shape[1]
    mask_rows_kernel[(triton.cdiv(vocab_size, TILE), len(rows))](
        logits, rows, bitmask, logits.stride(0), bitmask.stride(0), vocab_size, TILE=TILE
    )
