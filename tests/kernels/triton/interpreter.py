"""Where the interpreter computes something else than a GPU."""

import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def round_to_fp8_as_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round to the nearest, ties to even, as torch does.

    The interpreter loses the carry where a rounding to fp8 reaches the next power of two.
    """
    convert = InterpreterBuilder.create_fp_to_fp

    def exact(self: InterpreterBuilder, source: TensorHandle, target: object, rounding: object) -> TensorHandle:
        if target.scalar != tl.float8e4nv:  # type: ignore[attr-defined]
            return convert(self, source, target, rounding)
        rounded = torch.from_numpy(source.data).to(torch.float8_e4m3fn)
        return TensorHandle(rounded.view(torch.uint8).numpy(), tl.float8e4nv)

    monkeypatch.setattr(InterpreterBuilder, "create_fp_to_fp", exact)
