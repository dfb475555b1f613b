"""Parts shared by decode and extend: query rows, tiles of paged KV, and one step of the online softmax (Milakov and
Gimelshein, arXiv 1805.02867; FlashAttention, Dao et al., arXiv 2205.14135).

Both kernels lay out a row's queries the same way. The query heads that share a KV head become rows of one matrix, token
after token, so that each K and V is read once for the whole group:

    packed row i  =  query token i // GROUP,  query head kv_head * GROUP + i % GROUP

Softmax is in base 2, with log2(e) folded into the scale of the scores, and in float32 throughout. Maxima start at a low
finite number, so that a row without visible keys needs no special case: its sum stays 0.
"""

import math

import triton
import triton.language as tl

from kernels.layout import BLOCK_TOKENS
from kernels.triton.int8_kv import load_scales

BLOCK = tl.constexpr(BLOCK_TOKENS)
STEP_TENSORS = ["block_tables", "row_slots", "query_starts", "context_lens", "split_starts"]
"""Arguments that may point into a larger buffer. Kernels do not specialise on their alignment, so none is compiled
late."""

LOWEST = tl.constexpr(-1.0e30)
LOG2_E = tl.constexpr(math.log2(math.e))


@triton.jit
def load_query(
    query,
    first_token,
    tokens,
    packed,
    kv_head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
):
    """Packed rows of a row's queries from query [T, Hq, D].

    Returns the queries [M, DIM], their element offsets (also the output's), and a mask of those that exist.
    """
    token = packed // GROUP
    head = kv_head * GROUP + packed % GROUP
    dim = tl.arange(0, DIM)
    line = (first_token + token).to(tl.int64) * (KV_HEADS * GROUP) + head
    offsets = line[:, None] * HEAD_DIM + dim[None, :]
    exists = (token < tokens)[:, None] & (dim < HEAD_DIM)[None, :]
    return tl.load(query + offsets, mask=exists, other=0.0), offsets, exists


@triton.jit
def _tanh(x):
    """(1 - e) / (1 + e) with an e that does not overflow."""
    e = tl.exp2(tl.abs(x) * (-2 * LOG2_E))
    tanh = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -tanh, tanh)


@triton.jit
def start_softmax(ROWS: tl.constexpr, DIM: tl.constexpr):
    """(maximum score, sum of weights, weighted sum of values) of no keys."""
    highest = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, DIM), tl.float32)
    return highest, total, mixed


@triton.jit
def add_sinks(softmax, sinks, heads, there):
    """`start_softmax` with a score of each row's head without a value, of sinks float32 [Hq], if `there`."""
    highest, total, mixed = softmax
    scores = tl.maximum(tl.load(sinks + heads) * LOG2_E, LOWEST)
    return tl.where(there, scores, highest), tl.where(there, 1.0, total), mixed


@triton.jit
def attention_step(
    softmax,
    query,
    query_at,
    kv_head_keys,
    kv_head_scales,
    block_table,
    start,
    first_key,
    stop,
    block_stride,
    scale,
    CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
    EDGE: tl.constexpr,
):
    """Add the keys at positions [start, start + TILE) to `softmax`, as returned by `start_softmax`.

    query [M, DIM] is at positions query_at [M]; kv_head_keys points at the head's key in slot 0 of block 0, and
    kv_head_scales at its scales where KV is in int8: a key's multiplies its scores, and a value's its weights. Without
    EDGE every query sees every key of the tile. With it, only keys in [first_key, stop) are read, and each query sees
    those up to its own position, within the WINDOW if there is one. No address outside them is accessed. `start` is a
    multiple of TILE and TILE of BLOCK: block ids are read once a block. scale: of scores, in base 2, or over the
    softcap CAP if there is one.
    """
    highest, total, mixed = softmax
    DIM: tl.constexpr = query.shape[1]
    TOKEN_STRIDE: tl.constexpr = 2 * KV_HEADS * HEAD_DIM

    columns = start // BLOCK + tl.arange(0, TILE // BLOCK)
    key_at = start + tl.arange(0, TILE)
    dim = tl.arange(0, DIM)
    readable = (dim < HEAD_DIM)[None, :]
    in_context = None
    if EDGE:
        used = (columns * BLOCK < stop) & (columns * BLOCK + BLOCK > first_key)
        blocks = tl.load(block_table + columns, mask=used, other=0)
        in_context = (key_at >= first_key) & (key_at < stop)
        readable = readable & in_context[:, None]
    else:
        blocks = tl.load(block_table + columns)
    slots = blocks.to(tl.int64)[:, None] * block_stride + (tl.arange(0, BLOCK) * TOKEN_STRIDE)[None, :]
    # The compiler does not follow divisibility through a reshape, and needs it for 16-byte loads.
    offsets = tl.multiple_of(tl.reshape(slots, (TILE,)), 16)[:, None] + dim[None, :]
    whole: tl.constexpr = HEAD_DIM == DIM and not EDGE
    keys = _load_tile(kv_head_keys + offsets, readable, whole).to(query.dtype)
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    if kv_head_scales is not None:
        scores *= load_scales(kv_head_scales, blocks.to(tl.int64), block_stride, in_context, 0, TILE)[None, :]
    if CAP > 0:
        scores = _tanh(scores) * (CAP * LOG2_E)
    if EDGE:
        visible = (key_at < stop)[None, :] & (key_at[None, :] <= query_at[:, None])
        if WINDOW > 0:
            visible &= key_at[None, :] > query_at[:, None] - WINDOW
        scores = tl.where(visible, scores, float("-inf"))
    raised = tl.maximum(highest, tl.max(scores, axis=1))
    kept = tl.exp2(highest - raised)
    weights = tl.exp2(scores - raised[:, None])
    values = _load_tile(kv_head_keys + KV_HEADS * HEAD_DIM + offsets, readable, whole).to(query.dtype)
    if kv_head_keys.dtype.element_ty.primitive_bitwidth == 8:
        # A sum of one number each. A product's second operand has its tokens side by side; the compiler would see to
        # that before it widens the bytes, and read them from shared memory one by one, but not across a sum.
        values = tl.sum(tl.reshape(values, (TILE, 1, DIM)), axis=1)
    total = total * kept + tl.sum(weights, axis=1)
    if kv_head_scales is not None:
        weights *= load_scales(kv_head_scales, blocks.to(tl.int64), block_stride, in_context, 1, TILE)[None, :]
    mixed = tl.dot(weights.to(query.dtype), values, mixed * kept[:, None], input_precision="ieee")
    return raised, total, mixed


@triton.jit
def _load_tile(pointers, readable, WHOLE: tl.constexpr):
    if WHOLE:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=readable, other=0.0)


@triton.jit
def finish_softmax(softmax):
    """The weighted mean of the values [M, DIM], 0 without visible keys, and log2 of the sum of weights [M]."""
    highest, total, mixed = softmax
    total = tl.where(total > 0.0, total, 1.0)
    return mixed / total[:, None], highest + tl.log2(total)


@triton.jit
def first_visible(context, tokens, WINDOW: tl.constexpr):
    """Position of the first key that any of a row's queries attends to."""
    if WINDOW > 0:
        return tl.maximum(context - tokens + 1 - WINDOW, 0)
    else:
        return 0
