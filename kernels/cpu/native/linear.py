"""Products of few rows, bound by how fast a weight comes from memory, and of many, bound by arithmetic."""

import ctypes

import torch
from torch import Tensor

from kernels.cpu.native.library import load


def can_pack(weight: Tensor) -> bool:
    """Whether there is a native product for the weight [out, in]."""
    return load() is not None and weight.dtype == torch.bfloat16 and weight.shape[1] % 2 == 0


class NativeLinear:
    """A weight [out, in] bf16 in the native layout; the row-major original is not kept.

    Takes x [T, in] bf16 whose rows lie anywhere, each contiguous. Sums are float32, rounded once.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        library = load()
        assert library is not None, "there is no native library"
        assert can_pack(weight)
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        weight = weight.contiguous()
        size = library.tp_bf16_packed_size(self.out_features, self.in_features)
        self._packed = torch.empty(size, dtype=torch.bfloat16)
        library.tp_bf16_pack(weight.data_ptr(), self.out_features, self.in_features, self._packed.data_ptr())
        self._bias = None if bias is None else bias.float().contiguous()
        self._product = library.tp_bf16_linear
        self._weight_arguments = (
            ctypes.c_void_p(self._packed.data_ptr()),
            ctypes.c_int64(self.out_features),
            ctypes.c_int64(self.in_features),
        )
        self._bias_pointer = ctypes.c_void_p(None if self._bias is None else self._bias.data_ptr())

    def __call__(self, x: Tensor) -> Tensor:
        assert x.dtype == self.dtype, f"x is {x.dtype}"
        assert x.shape[1] == self.in_features, f"x is {tuple(x.shape)}, the weight takes {self.in_features}"
        if x.stride(1) != 1:
            x = x.contiguous()
        rows = x.shape[0]
        y = torch.empty((rows, self.out_features), dtype=torch.bfloat16)
        self._product(
            *self._weight_arguments, x.data_ptr(), x.stride(0), rows, self._bias_pointer, y.data_ptr(), y.stride(0)
        )
        return y
