"""Blocks are cleared, copied and moved whole, in all layers, and no other block changes."""

import pytest
import torch

from kernels import reference
from kernels.layout import BLOCK_TOKENS, HeadShape, MixedBlocks
from kernels.triton import blocks
from kernels.triton.ops import TritonOps
from kernels.weights import KVScales
from tests.support.kernel_tensors import DEVICE

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
"""All of them: a block is moved as words, whatever its numbers are."""

LAYERS, NUM_BLOCKS = 3, 7


def pool(dtype: torch.dtype, kv_heads: int = 2, head_dim: int = 80) -> torch.Tensor:
    """Random bits, NaNs among them."""
    shape = (LAYERS, NUM_BLOCKS, BLOCK_TOKENS, 2, kv_heads, head_dim * dtype.itemsize)
    generator = torch.Generator().manual_seed(head_dim)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(DEVICE).view(dtype)


def bits(kv: torch.Tensor) -> torch.Tensor:
    return kv.contiguous().view(torch.uint8)


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(2, 80), (8, 128), (1, 1)])
def test_clear(dtype: torch.dtype, kv_heads: int, head_dim: int) -> None:
    kv = pool(dtype, kv_heads, head_dim)
    expected = bits(kv).clone()
    reference.clear_blocks(expected, ids(6, 0, 3, 0))
    blocks.clear_blocks(kv, ids(6, 0, 3, 0))
    assert torch.equal(bits(kv), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(2, 80), (8, 128), (1, 1)])
def test_copy(dtype: torch.dtype, kv_heads: int, head_dim: int) -> None:
    """One source may have several targets."""
    kv = pool(dtype, kv_heads, head_dim)
    expected = bits(kv).clone()
    reference.copy_blocks(expected, ids(1, 5, 1), ids(0, 6, 4))
    blocks.copy_blocks(kv, ids(1, 5, 1), ids(0, 6, 4))
    assert torch.equal(bits(kv), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_to_a_staging_buffer_and_back_into_other_blocks(dtype: torch.dtype) -> None:
    kv = pool(dtype)
    staging = torch.empty((3, LAYERS, BLOCK_TOKENS, 2, 2, 80), dtype=dtype, device=DEVICE)
    expected = torch.empty_like(staging)
    reference.gather_blocks(bits(kv), ids(5, 2, 5), bits(expected))
    blocks.gather_blocks(kv, ids(5, 2, 5), staging)
    assert torch.equal(bits(staging), bits(expected))

    pool_after = bits(kv).clone()
    reference.scatter_blocks(bits(staging), pool_after, ids(0, 6, 1))
    blocks.scatter_blocks(staging, kv, ids(0, 6, 1))
    assert torch.equal(bits(kv), pool_after)
    assert torch.equal(bits(kv[:, 0]), bits(kv[:, 5]))


def test_a_pool_laid_out_by_blocks() -> None:
    """[N, L, ...] in memory, seen as [L, N, ...]: strides decide, not the order."""
    kv = pool(torch.float16).transpose(0, 1).contiguous().transpose(0, 1)
    expected = bits(kv).clone()
    reference.copy_blocks(expected, ids(1), ids(4))
    reference.clear_blocks(expected, ids(2))
    blocks.copy_blocks(kv, ids(1), ids(4))
    blocks.clear_blocks(kv, ids(2))
    assert torch.equal(bits(kv), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_pool_of_mixed_heads(dtype: torch.dtype) -> None:
    """A block is one run of numbers with the heads of all its layers, and it moves whole."""
    mixed = MixedBlocks((HeadShape(2, 16), HeadShape(1, 80), HeadShape(1, 32)), (0, 1, 0))
    scales = KVScales(key=0.5, value=2.0) if dtype == torch.float8_e4m3fn else None
    kv = TritonOps(DEVICE, torch.bfloat16, scales).allocate_mixed_kv(NUM_BLOCKS, mixed)
    assert (kv.dtype, tuple(kv.shape)) == (dtype, (1, NUM_BLOCKS, BLOCK_TOKENS * 2 * 80))
    assert not bits(kv).any()
    kv.view(torch.uint8).random_(256, generator=torch.Generator(DEVICE).manual_seed(0))
    expected = bits(kv).clone()
    reference.copy_blocks(expected, ids(1, 5), ids(4, 0))
    reference.clear_blocks(expected, ids(2))
    blocks.copy_blocks(kv, ids(1, 5), ids(4, 0))
    blocks.clear_blocks(kv, ids(2))
    assert torch.equal(bits(kv), expected)
    staging = torch.empty((2, 1, kv.shape[2]), dtype=dtype, device=DEVICE)
    blocks.gather_blocks(kv, ids(3, 6), staging)
    blocks.scatter_blocks(staging, kv, ids(6, 3))
    assert torch.equal(bits(kv)[0, [6, 3]], expected[0, [3, 6]])


def test_nothing_to_do() -> None:
    kv = pool(torch.float16)
    before = bits(kv).clone()
    blocks.clear_blocks(kv, ids())
    blocks.copy_blocks(kv, ids(), ids())
    assert torch.equal(bits(kv), before)
