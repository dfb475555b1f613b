"""Resident memory."""

import ctypes
import mmap
import sys

import pytest

from kernels.arrays import BFLOAT16, Array, address
from kernels.cpu.memory import lazy_zeros


@pytest.mark.skipif(sys.platform != "linux", reason="mincore")
def test_a_block_of_kv_makes_its_own_pages_resident_and_no_others() -> None:
    layers, blocks, block = 3, 2000, (16, 2, 3, 64)
    kv = lazy_zeros((layers, blocks, *block), BFLOAT16)
    assert resident_pages(kv) == 0
    kv[:, 7] = 1
    pages_of_a_block = kv[0, 0].nbytes // mmap.PAGESIZE + 2
    assert 0 < resident_pages(kv) <= layers * pages_of_a_block
    assert not kv[:, 8].any()
    assert kv[:, 7].all()


def resident_pages(array: Array) -> int:
    """Of memory that begins with a page."""
    flags = (ctypes.c_ubyte * -(-array.nbytes // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address(array)), ctypes.c_size_t(array.nbytes), flags) == 0
    return sum(flag & 1 for flag in flags)
