"""Masks logits by a grammar's token bitmask. Oracle: `kernels.reference.mask_logits`."""

import triton
import triton.language as tl
from torch import Tensor

TILE = 2048


@triton.jit
def mask_logits_kernel(logits, bitmask, logits_stride, bitmask_stride, vocab_size, TILE: tl.constexpr):
    """Set the logits [R, V] of tokens whose bit of int32 [R, ceil(V / 32)] is 0 to -inf. Grid: (tiles of V, R)."""
    row = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = token < vocab_size
    words = tl.load(bitmask + row * bitmask_stride + token // 32, mask=inside, other=0)
    forbidden = ((words >> (token % 32)) & 1) == 0
    lowest = tl.full([TILE], float("-inf"), tl.float32).to(logits.dtype.element_ty)
    tl.store(logits + row * logits_stride + token, lowest, mask=inside & forbidden)


def mask_logits(logits: Tensor, bitmask: Tensor) -> None:
    """Set logits [R, V] of forbidden tokens to -inf in place."""
    rows, vocab_size = logits.shape
    mask_logits_kernel[(triton.cdiv(vocab_size, TILE), rows)](
        logits, bitmask, logits.stride(0), bitmask.stride(0), vocab_size, TILE=TILE
    )
