"""The definition of KV in int8, in plain torch.

Each key and value vector of a head is stored as integers from -127 to 127 with one scale. A block of a layer is int8
[16, 2, Hkv, D] followed by scales bfloat16 [Hkv, 2, 16]: a head's keys, then its values; of keys alone, with 1 in place
of 2. A bfloat16 scale takes two bytes and has the range of what it scales.
"""

import torch
from torch import Tensor

from kernels.layout import BLOCK_TOKENS, int8_block_bytes

_LARGEST = 127


def scales_of(numbers: Tensor) -> Tensor:
    """The scale of each bfloat16 vector [..., D], float32 [...]: the smallest bfloat16 number with which the vector
    fits.

    NaN if an element is not finite.
    """
    largest = numbers.float().abs().amax(-1)
    bits = (torch.nan_to_num(largest, posinf=0) / _LARGEST).view(torch.int32)
    above = (bits + 0xFFFF & ~0xFFFF).view(torch.float32)
    return above.masked_fill(~numbers.isfinite().all(-1), torch.nan)


def to_int8(kv: Tensor) -> Tensor:
    """KV bfloat16 [..., 16, 2 or 1, Hkv, D] as blocks int8 [..., bytes]. Rounds to nearest, ties to even."""
    scales = scales_of(kv)
    divisors = torch.where(scales > 0, scales, torch.inf)  # of zeros, and of what is not finite: all are 0
    numbers = torch.nan_to_num(kv.float() / divisors[..., None]).round()
    numbers = numbers.masked_fill(~(scales > 0)[..., None], 0).to(torch.int8)
    halves = (scales.view(torch.int32) >> 16).to(torch.int16)  # a NaN, too, always has the same bits
    of_heads = halves.movedim(-3, -1).transpose(-3, -2).contiguous()  # [..., Hkv, 2, 16]
    return torch.cat((numbers.flatten(-4), of_heads.flatten(-3).view(torch.int8)), dim=-1)


def from_int8(blocks: Tensor, kv_heads: int, head_dim: int, kinds: int = 2) -> Tensor:
    """Blocks int8 [..., bytes] as KV float32 [..., 16, 2, Hkv, D], or with `kinds` in place of 2, as attention computes
    with."""
    assert blocks.shape[-1] == int8_block_bytes(kv_heads, head_dim, kinds), f"blocks have {blocks.shape[-1]} bytes"
    numbers = numbers_of(blocks, kv_heads, head_dim, kinds)
    count = numbers.shape[-4:].numel()
    of_heads = blocks[..., count:].contiguous().view(torch.bfloat16).float()
    scales = of_heads.view(*blocks.shape[:-1], kv_heads, kinds, BLOCK_TOKENS).transpose(-3, -2).movedim(-1, -3)
    return numbers.float() * scales[..., None]


def numbers_of(blocks: Tensor, kv_heads: int, head_dim: int, kinds: int = 2) -> Tensor:
    """A view int8 [..., 16, 2, Hkv, D], or with `kinds` in place of 2, of the numbers in blocks int8 [..., bytes]."""
    count = BLOCK_TOKENS * kinds * kv_heads * head_dim
    return blocks[..., :count].view(*blocks.shape[:-1], BLOCK_TOKENS, kinds, kv_heads, head_dim)
