"""Memory management of a process that computes on a CPU."""

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
    """Configure glibc's allocator to keep freed megabyte-sized buffers instead of returning them to the kernel.

    A step allocates and frees the same activations repeatedly. Above about 1 MiB each would be a fresh mmap whose pages
    fault one by one: an RMS norm of 256 rows took eight times as long. A no-op on other C libraries.
    """
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def lazy_zeros(shape: tuple[int, ...], dtype: Dtype) -> Array:
    """Zeros in small pages that become resident on first write; freed with the array.

    With huge pages the first block of KV would take 2 MiB in every layer. Attention reads small pages as fast.
    """
    return _mapped(math.prod(shape) * dtype.itemsize, "MADV_NOHUGEPAGE").view(dtype).reshape(shape)


class WeightMemory:
    """Allocator for long-lived weights: aligned, in huge pages where possible, which are faster to read.

    Arrays are cut from large pieces, to waste little of a huge page. A piece is freed with its last array; an array of
    half a piece or more gets its own.
    """

    def __init__(self) -> None:
        self._piece: Bytes = np.empty(0, dtype=np.uint8)
        self._used = 0

    def take(self, count: int) -> Bytes:
        """Zeroed uint8 [count], aligned to a cache line."""
        if 2 * count >= _PIECE_BYTES:
            return _huge_pages(count)
        if self._used + count > len(self._piece):
            self._piece, self._used = _huge_pages(_PIECE_BYTES), 0
        taken = self._piece[self._used : self._used + count]
        self._used += -(-count // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES
        return taken


def _huge_pages(count: int) -> Bytes:
    """Zeros aligned to a huge page, resident on first write."""
    whole = _mapped(count + _HUGE_PAGE_BYTES, "MADV_HUGEPAGE")
    start = -address(whole) % _HUGE_PAGE_BYTES
    return whole[start : start + count]


def _mapped(count: int, advice: str) -> Bytes:
    """Zeroed uint8 [count] in a mapping of its own, owned by the array; not yet resident."""
    memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, advice):
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(getattr(mmap, advice))
    return np.frombuffer(memory, dtype=np.uint8)
