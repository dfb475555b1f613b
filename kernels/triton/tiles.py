"""Tile sizes of kernels that only move and map numbers."""

from torch import Tensor

MOVED_TILE = 1024
"""Elements of a program that processes a part of a row: 16 bytes a thread of four warps in 16 bits."""

_LANE_ELEMENTS = 8
"""Elements a thread loads at a time: 16 bytes of a 16-bit dtype."""
_WARP_THREADS = 32
_MOST_WARPS = 16


def tile_above(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


def warps_for(elements: int) -> int:
    """Number of warps that load a tile 16 bytes a thread, repeatedly if more would not fit a program."""
    return max(1, min(_MOST_WARPS, elements // (_LANE_ELEMENTS * _WARP_THREADS)))


def require_contiguous(*tensors: Tensor) -> None:
    """Kernels assume contiguous tensors and take no strides.

    Raises:
        ValueError: a tensor is not contiguous.
    """
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(f"a tensor {tuple(tensor.shape)} with strides {tensor.stride()} is not contiguous")
