"""bfloat16 in Triton's interpreter, which keeps its bits as integers and computes with these.

Here numbers are of ml_dtypes' bfloat16: an operation rounds its result to the nearest, ties to even, as a GPU does, and
a product of matrices multiplies without rounding and sums in float32.
"""

from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_dtype_of = interpreter._get_np_dtype
_load, _store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
_convert, _cast, _dot = InterpreterBuilder.create_fp_to_fp, InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot


def install() -> None:
    """Compute with bfloat16 from now on, in this process."""
    interpreter._get_np_dtype = _get_np_dtype
    InterpreterBuilder.create_masked_load = _masked_load
    InterpreterBuilder.create_masked_store = _masked_store
    InterpreterBuilder.create_fp_to_fp = _fp_to_fp
    InterpreterBuilder.cast_impl = _cast_impl
    InterpreterBuilder.create_dot = _matrix_product


def _get_np_dtype(dtype: Any) -> np.dtype[Any]:
    return BFLOAT16 if dtype.scalar == tl.bfloat16 else _dtype_of(dtype)


def _masked_load(
    self: InterpreterBuilder, pointers: TensorHandle, mask: TensorHandle, other: TensorHandle | None, *options: Any
) -> TensorHandle:
    dtype = pointers.get_element_ty()
    if dtype != tl.bfloat16:
        return _load(self, pointers, mask, other, *options)
    bits = np.zeros(pointers.data.shape, np.uint16) if other is None else other.data.view(np.uint16)
    loaded = interpreter._interpreter.load(pointers.data, mask.data, bits, np.dtype(np.uint16))
    return TensorHandle(loaded.view(BFLOAT16), dtype)


def _masked_store(
    self: InterpreterBuilder, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, *options: Any
) -> Any:
    if value.data.dtype == BFLOAT16:
        value = TensorHandle(np.ascontiguousarray(value.data).view(np.uint16), tl.uint16)
    return _store(self, pointers, value, mask, *options)


def _fp_to_fp(self: InterpreterBuilder, source: TensorHandle, target: Any, rounding: Any) -> TensorHandle:
    if tl.bfloat16 not in (source.dtype.scalar, target.scalar):
        return _convert(self, source, target, rounding)
    return _by_float32(self, source, target, rounding)


def _cast_impl(self: InterpreterBuilder, source: TensorHandle, target: Any) -> TensorHandle:
    if tl.bfloat16 not in (source.dtype.scalar, target.scalar):
        return _cast(self, source, target)
    return _by_float32(self, source, target, None)


def _by_float32(self: InterpreterBuilder, source: TensorHandle, target: Any, rounding: Any) -> TensorHandle:
    """A conversion from or to bfloat16. numpy knows no 8-bit floats: these go by way of float32, which is exact."""
    if source.dtype.scalar.primitive_bitwidth == 8 and source.dtype.scalar.is_floating():
        source = _convert(self, source, tl.float32, rounding)
    if target.scalar.primitive_bitwidth == 8 and target.scalar.is_floating():
        wide = TensorHandle(source.data.astype(np.float32), tl.float32)
        return self.create_fp_to_fp(wide, target, rounding)
    return TensorHandle(source.data.astype(_get_np_dtype(target)), target.scalar)


def _matrix_product(
    self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, total: TensorHandle, *options: Any
) -> TensorHandle:
    if BFLOAT16 not in (a.data.dtype, b.data.dtype):
        return _dot(self, a, b, total, *options)
    wide = [TensorHandle(each.data.astype(np.float32), tl.float32) for each in (a, b)]
    return _dot(self, *wide, total, *options)
