"""Memory behaviour of a process that computes on a CPU."""

import ctypes
import ctypes.util
import math
import mmap
from contextlib import suppress

import numpy as np

from kernels.arrays import Array, Bytes, Dtype, address

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 32 * 2**20
_TRIM_THRESHOLD_BYTES = 512 * 2**20

_HUGE_PAGE_BYTES = 2 * 2**20
_PIECE_BYTES = 64 * 2**20
_CACHE_LINE_BYTES = 64


def keep_freed_memory() -> None:
    """Let glibc's allocator keep freed megabyte-sized buffers instead of giving them back to the kernel.

    A step allocates and frees the same activations again and again. Past 1 MiB or so each would be a fresh mmap whose
    pages fault one by one: an RMS norm of 256 rows took eight times as long. A no-op on other C libraries.
    """
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def lazy_zeros(shape: tuple[int, ...], dtype: Dtype) -> Array:
    """Zeros whose pages, small ones, become resident when they are first written; they go back with the array.

    In huge pages the first block of KV would take 2 MiB in every layer. Attention reads small ones as fast.
    """
    return _mapped(math.prod(shape) * dtype.itemsize, "MADV_NOHUGEPAGE").view(dtype).reshape(shape)


class WeightMemory:
    """Memory for weights that stay: aligned, and advised to lie in huge pages, which a processor reads faster from.

    Arrays are cut from large pieces, one behind the other, so that little of a huge page is left over. A piece goes
    back when the last array in it is gone; what is as large as half of one has its own.
    """

    def __init__(self) -> None:
        self._piece: Bytes = np.empty(0, dtype=np.uint8)
        self._used = 0

    def take(self, count: int) -> Bytes:
        """uint8 [count], zeros, aligned to a cache line."""
        if 2 * count >= _PIECE_BYTES:
            return _huge_pages(count)
        if self._used + count > len(self._piece):
            self._piece, self._used = _huge_pages(_PIECE_BYTES), 0
        taken = self._piece[self._used : self._used + count]
        self._used += -(-count // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES
        return taken


def _huge_pages(count: int) -> Bytes:
    """Zeros that begin at a huge page's border and become resident when they are first written."""
    whole = _mapped(count + _HUGE_PAGE_BYTES, "MADV_HUGEPAGE")
    start = -address(whole) % _HUGE_PAGE_BYTES
    return whole[start : start + count]


def _mapped(count: int, advice: str) -> Bytes:
    """uint8 [count] of zeros in a mapping of its own, which the array keeps; nothing of it is resident yet."""
    memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, advice):
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(getattr(mmap, advice))
    return np.frombuffer(memory, dtype=np.uint8)
