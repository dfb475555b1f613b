"""Operations on whole blocks of KV memory: clear, copy within the pool, gather to a staging buffer and scatter from it.

The pool is [L, N, 16, 2, Hkv, D], or of mixed heads [1, N, numbers of a block], as `kernels.ops.Ops` allocates it.

To a kernel a block of one layer is a run of 8-byte words, so that every dtype uses the same code. The staging buffer
[n, L, 16, 2, Hkv, D] is what a host tier moves at once: each block with all its layers contiguous.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.tiles import MOVED_TILE, require_contiguous, warps_for


@triton.jit
def move_blocks_kernel(
    source,
    target,
    source_ids,
    target_ids,
    source_block_stride,
    source_layer_stride,
    target_block_stride,
    target_layer_stride,
    WORDS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Copy blocks of WORDS int64 words, all layers: block source_ids[i] of source to block target_ids[i] of target.

    ids: int64 [n], or None where block i is meant. Strides are in words. Grid (n, L, tiles of WORDS). The order of the
    copies is not defined. Oracles: `kernels.reference.copy_blocks`, `gather_blocks`, `scatter_blocks`.
    """
    index = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1).to(tl.int64)
    word = tl.program_id(2) * TILE + tl.arange(0, TILE)
    exists = word < WORDS
    source_block = index
    if source_ids is not None:
        source_block = tl.load(source_ids + index)
    target_block = index
    if target_ids is not None:
        target_block = tl.load(target_ids + index)
    words = tl.load(source + source_block * source_block_stride + layer * source_layer_stride + word, mask=exists)
    tl.store(target + target_block * target_block_stride + layer * target_layer_stride + word, words, mask=exists)


@triton.jit
def clear_blocks_kernel(kv, block_ids, block_stride, layer_stride, WORDS: tl.constexpr, TILE: tl.constexpr):
    """Zero blocks block_ids int64 [n] of WORDS int64 words in all layers of kv. Grid (n, L, tiles of WORDS).

    Oracle: `kernels.reference.clear_blocks`.
    """
    layer = tl.program_id(1).to(tl.int64)
    word = tl.program_id(2) * TILE + tl.arange(0, TILE)
    block = tl.load(block_ids + tl.program_id(0))
    zeros = tl.zeros([TILE], dtype=tl.int64)
    tl.store(kv + block * block_stride + layer * layer_stride + word, zeros, mask=word < WORDS)


def clear_blocks(kv: Tensor, block_ids: Tensor) -> None:
    """Zero blocks block_ids int64 [n] of kv [L, N, 16, 2, Hkv, D]."""
    words = _words(kv)
    layers, _, count = words.shape
    grid = (block_ids.shape[0], layers, triton.cdiv(count, MOVED_TILE))
    clear_blocks_kernel[grid](
        words,
        block_ids,
        words.stride(1),
        words.stride(0),
        WORDS=count,
        TILE=MOVED_TILE,
        num_warps=warps_for(MOVED_TILE),
    )


def copy_blocks(kv: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy blocks `sources` int64 [n] of kv [L, N, 16, 2, Hkv, D] to `targets`. The two sets are disjoint."""
    words = _words(kv).transpose(0, 1)
    _move(words, words, sources, targets)


def gather_blocks(kv: Tensor, block_ids: Tensor, staging: Tensor) -> None:
    """Copy blocks block_ids int64 [n] of kv [L, N, 16, 2, Hkv, D] into staging [n, L, 16, 2, Hkv, D]."""
    _move(_words(kv).transpose(0, 1), _words(staging), block_ids, None)


def scatter_blocks(staging: Tensor, kv: Tensor, block_ids: Tensor) -> None:
    """Copy staging [n, L, 16, 2, Hkv, D] into distinct blocks block_ids int64 [n] of kv [L, N, 16, 2, Hkv, D]."""
    _move(_words(staging), _words(kv).transpose(0, 1), None, block_ids)


def _words(blocks: Tensor) -> Tensor:
    """int64 [., ., words]: the two outer dimensions unchanged, and each layer's part of a block as words."""
    require_contiguous(blocks[0, 0])
    return blocks.flatten(2).view(torch.int64)


def _move(source: Tensor, target: Tensor, source_ids: Tensor | None, target_ids: Tensor | None) -> None:
    """Between two of int64 [blocks, L, words]."""
    ids = source_ids if source_ids is not None else target_ids
    assert ids is not None, "one side of a move names its blocks"
    _, layers, words = source.shape
    move_blocks_kernel[(ids.shape[0], layers, triton.cdiv(words, MOVED_TILE))](
        source,
        target,
        source_ids,
        target_ids,
        source.stride(0),
        source.stride(1),
        target.stride(0),
        target.stride(1),
        WORDS=words,
        TILE=MOVED_TILE,
        num_warps=warps_for(MOVED_TILE),
    )
