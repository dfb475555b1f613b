"""Conversion between numpy arrays and torch tensors that share memory, including bfloat16, which torch's own bridge
does not support."""

import numpy as np
import torch
from torch import Tensor

from kernels.arrays import BFLOAT16, FLOAT16, FLOAT32, Array, Dtype, address

_DTYPES = {torch.bfloat16: BFLOAT16, torch.float16: FLOAT16, torch.float32: FLOAT32}


def numpy_dtype(dtype: torch.dtype) -> Dtype:
    return _DTYPES[dtype]


def tensor_of(array: Array) -> Tensor:
    """The same memory as a tensor. Read-only if the array is."""
    if array.dtype == BFLOAT16:
        return tensor_of(array.view(np.int16)).view(torch.bfloat16)
    # torch warns of arrays that it could write to by mistake
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Unlocked(array)))


class _Unlocked:
    """A view of a read-only array's memory that torch accepts."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__ | {"data": (address(array), False)}


def array_of(tensor: Tensor) -> Array:
    """The same memory as an array. The tensor must be on the host."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16)
    return tensor.numpy()
