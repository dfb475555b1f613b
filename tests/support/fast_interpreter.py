"""Spares Triton's interpreter work that it repeats for each value and each call of a function in a kernel.

Interpreted kernels take a third of the processor time, and compute the same values:

- The interpreter looks through all names of `triton.language` for the ones to replace at each launch, and at each call
  of a function from a kernel, `tl.sum` for one. Here it does so once in a process, and what it replaced stays: in a
  process that interprets kernels, nothing else uses those names.
- It computes each sum, difference and product of integers in 64 bits, too, and then does not look at the result: only
  in a debug mode that it cannot be put in.
- Types of blocks, shapes of values and the types of numpy are made once for each shape and scalar.
"""

import dataclasses
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

_INTERPRETER = "triton.runtime.interpreter"


def install() -> bool:
    """Do it if the interpreter has been imported; whether it has."""
    interpreter = sys.modules.get(_INTERPRETER)
    if interpreter is None:
        return False
    _patch_language_once(interpreter)
    _leave_overflows(interpreter)
    _remember_dtypes(interpreter)
    _remember_shapes(interpreter.tl.core)
    return True


def _patch_language_once(interpreter: Any) -> None:
    language = interpreter.tl
    every_name = SimpleNamespace(__globals__={"tl": language, "core": language.core})
    patch_language, patched = interpreter._patch_lang, False
    nothing_to_restore = interpreter._LangPatchScope()

    def patch_once(function: object) -> object:
        nonlocal patched
        if not patched:
            patch_language(every_name)
            patched = True
        return nothing_to_restore

    interpreter._patch_lang = patch_once


def _leave_overflows(interpreter: Any) -> None:
    builder = interpreter.interpreter_builder
    assert not builder.options.debug, "it would raise where an integer overflows"
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _remember_dtypes(interpreter: Any) -> None:
    """By the name of the scalar: types of blocks have no hash."""
    numpy_dtype, by_name = interpreter._get_np_dtype, {}

    def remembered(dtype: Any) -> Any:
        name = dtype.scalar.name
        found = by_name.get(name)
        if found is None:
            found = by_name[name] = numpy_dtype(dtype)
        return found

    interpreter._get_np_dtype = remembered


def _remember_shapes(core: ModuleType) -> None:
    """Parts of a block's type and of a value that follow from the shape. Nothing changes them once they are made."""
    make_type, make_tensor = core.block_type.__init__, core.tensor.__init__
    of_types: dict[object, tuple[object, object, str]] = {}
    of_tensors: dict[object, tuple[object, object]] = {}

    def type_of_block(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(size.value if isinstance(size, core.constexpr) else size for size in shape))
        if (known := of_types.get(key)) is None:
            make_type(self, element_ty, shape)
            of_types[key] = self.shape, self.numel, self.name
        else:
            self.element_ty = element_ty
            self.shape, self.numel, self.name = known

    def tensor(self: Any, handle: object, type: Any) -> None:  # its name of an argument
        key = tuple(type.shape.values) if type.is_block() else ()
        if (known := of_tensors.get(key)) is None:
            make_tensor(self, handle, type)
            of_tensors[key] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known

    core.block_type.__init__ = type_of_block
    core.tensor.__init__ = tensor
