"""Products of heads, each with a weight of its own: one native call for them all."""

import ctypes
from collections.abc import Sequence

from kernels.arrays import BFLOAT16, Array, address, aligned_bytes
from kernels.cpu.native import abi
from kernels.cpu.native.library import load
from kernels.cpu.native.linear import NativeLinear


class HeadProducts:
    """`heads`: of one format and shape, with an even number of inputs, and without biases."""

    def __init__(self, heads: Sequence[NativeLinear]) -> None:
        library = load()
        assert library is not None, "there is no native library"
        assert heads[0].in_features % 2 == 0, f"{heads[0].in_features} inputs"
        self._library, self._heads = library, heads
        self._structs = (abi.Linear * len(heads))(*(head.struct for head in heads))
        self._at = ctypes.addressof(self._structs)

    def into(self, x: Array, y: Array) -> None:
        """The products of x bf16 [T, Hq, in], into y bf16 [T, Hq, out]: numbers of a row of a head are contiguous."""
        count, first = len(self._heads), self._heads[0]
        assert (x.dtype, y.dtype) == (BFLOAT16, BFLOAT16), f"x is {x.dtype}, y is {y.dtype}"
        assert x.shape[1:] == (count, first.in_features), f"x is {x.shape}, {count} heads take {first.in_features}"
        assert y.shape == (len(x), count, first.out_features), f"y is {y.shape}"
        if not len(x):
            return
        assert x.strides[2] == y.strides[2] == x.itemsize, "rows that are not contiguous"
        (x_stride, x_of_head, _), (y_stride, y_of_head, _) = (
            tuple(stride // array.itemsize for stride in array.strides) for array in (x, y)
        )
        scratch = aligned_bytes(self._library.tp_head_products_scratch_bytes(self._at, count, len(x)))
        self._library.tp_head_products(
            self._at, count, address(x), x_stride, x_of_head, len(x), address(y), y_stride, y_of_head, address(scratch)
        )
