"""How much one program of a kernel that only moves and maps numbers takes on."""

from torch import Tensor

MOVED_TILE = 1024
"""Elements of a program that takes a part of a row: 16 bytes a thread of four warps in 16 bits."""

_LANE_ELEMENTS = 8
"""Elements a thread loads at a time: 16 bytes of a 16-bit dtype."""
_WARP_THREADS = 32
_MOST_WARPS = 16


def tile_above(count: int) -> int:
    """The smallest power of two that is at least `count`: what a tile is long that holds as many."""
    return 1 << (count - 1).bit_length()


def warps_for(elements: int) -> int:
    """Warps that load a tile 16 bytes a thread, or several times so where more would not fit a program."""
    return max(1, min(_MOST_WARPS, elements // (_LANE_ELEMENTS * _WARP_THREADS)))


def require_contiguous(*tensors: Tensor) -> None:
    """Kernels take rows to lie one after another, and ask for no strides that are then known when they are compiled.

    Raises:
        ValueError: a tensor has gaps or another order.
    """
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(f"a tensor {tuple(tensor.shape)} with strides {tensor.stride()} is not contiguous")
