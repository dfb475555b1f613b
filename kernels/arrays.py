"""Arrays of numbers on the host: numpy's, with bfloat16 from ml_dtypes. What a processor computes with needs no torch."""

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

DtypeName = Literal["bfloat16", "float32"]
"""What a model can be computed in."""


def address(array: Array) -> int:
    """Where an array's first number lies, for native code. The array has to be kept for as long as that is used."""
    place: int = array.__array_interface__["data"][0]
    return place


def int_array(values: Any) -> Ints:
    return np.array(values, dtype=np.int64)
