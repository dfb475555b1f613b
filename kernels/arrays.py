"""Arrays on the host: numpy's, with bfloat16 from ml_dtypes. Imports no torch."""

from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int32]

Dtype = np.dtype[Any]
BFLOAT16: Dtype = np.dtype(ml_dtypes.bfloat16)
FLOAT16: Dtype = np.dtype(np.float16)
FLOAT32: Dtype = np.dtype(np.float32)

_CACHE_LINE_BYTES = 64

DtypeName = Literal["bfloat16", "float32"]
"""The dtypes that a model can be computed in."""


def address(array: Array) -> int:
    """Address of an array's first element, for native code. The caller keeps the array alive while it is used."""
    place: int = array.__array_interface__["data"][0]
    return place


def bits_of(array: Array) -> Array:
    """The same memory with bfloat16 viewed as uint16, which numpy moves several times as fast."""
    return array.view(np.uint16) if array.dtype == BFLOAT16 else array


def aligned_bytes(count: int) -> Bytes:
    """uint8 [count], aligned to a cache line, for native code to compute in."""
    memory: Bytes = np.empty(count + _CACHE_LINE_BYTES, np.uint8)
    first = -address(memory) % _CACHE_LINE_BYTES
    return memory[first : first + count]


def int_array(values: Any) -> Ints:
    return np.array(values, dtype=np.int64)
