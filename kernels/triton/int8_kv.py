"""KV in int8: each stored key and value vector of a head has a scale of its own, behind the numbers of its block.

A layer of a block is int8 [16, 2, Hkv, D], then bfloat16 [Hkv, 2, 16]: `kernels.reference_int8` defines both. To a
kernel a pointer to such numbers is one to a layer in any other dtype, whose blocks lie further apart.
"""

import triton
import triton.language as tl

from kernels.layout import BLOCK_TOKENS

BLOCK = tl.constexpr(BLOCK_TOKENS)
LARGEST = tl.constexpr(127.0)
_NEAREST = tl.constexpr(1.5 * 2**23)
"""Added and taken away, it leaves the nearest integer of a small number, an even one of two."""
_LARGEST_FLOAT = tl.constexpr(3.4028234e38)


@triton.jit
def scales_of_head(kv_layer, kv_head, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Pointer to the scales bfloat16 [2, 16] of a head in block 0 of a layer; None where KV is not in int8."""
    if kv_layer.dtype.element_ty == tl.int8:
        behind = kv_layer + BLOCK * 2 * KV_HEADS * HEAD_DIM
        return behind.to(tl.pointer_type(tl.bfloat16), bitcast=True) + kv_head * (2 * BLOCK)
    else:
        return None


@triton.jit
def load_scales(head_scales, blocks, block_stride, readable, KIND: tl.constexpr, TILE: tl.constexpr):
    """float32 [TILE], the scales of a head's keys (KIND 0) or values (1) in consecutive blocks int64 [TILE / 16].
    `readable`: bool [TILE], or None for all; the others are 0. `block_stride` is in bytes."""
    at = blocks[:, None] * (block_stride // 2) + KIND * BLOCK + tl.arange(0, BLOCK)[None, :]
    pointers = head_scales + tl.reshape(at, (TILE,))
    scales = _load(pointers, readable)
    # A sum of one number each, so that each scale is read once: the compiler would otherwise have every thread read
    # those of its scores.
    return tl.sum(tl.reshape(scales.to(tl.float32), (TILE, 1)), axis=1)


@triton.jit
def _load(pointers, readable):
    if readable is None:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=readable, other=0.0)


@triton.jit
def largest_of(part):
    """The largest magnitude of each row of [n, m]; infinity if a number is not finite: a maximum may lose a NaN."""
    size = tl.abs(part)
    return tl.max(tl.where(size <= _LARGEST_FLOAT, size, float("inf")), axis=1)


@triton.jit
def scale_for(largest):
    """The scale of vectors with these largest magnitudes, float32: the smallest bfloat16 with which each fits; NaN
    where one is not finite."""
    finite = largest <= _LARGEST_FLOAT
    bits = tl.div_rn(tl.where(finite, largest, 0.0), LARGEST).to(tl.int32, bitcast=True)
    above = ((bits + 0xFFFF) & -0x10000).to(tl.float32, bitcast=True)
    return tl.where(finite, above, float("nan"))


@triton.jit
def round_by(part, scale):
    """Rows of [n, m] over their scales [n], to the nearest int8, ties to even; 0 where the scale is 0 or NaN."""
    usable = scale > 0.0
    quotients = tl.div_rn(tl.where(usable[:, None], part, 0.0), tl.where(usable, scale, 1.0)[:, None])
    return ((quotients + _NEAREST) - _NEAREST).to(tl.int32).to(tl.int8)
