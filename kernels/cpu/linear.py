"""Matrix products with weights packed for oneDNN.

With few rows a product is bound by streaming its weights from memory. oneDNN's blocked layout streams 1.5 to 2 times as
fast as row-major bf16 in `torch.nn.functional.linear`.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build and processor support oneDNN's packed product for the dtype."""
    if not torch._C._has_mkldnn:
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


class PackedLinear:
    """A weight [out, in] in oneDNN's layout; the row-major original is not kept.

    Fewer than `min_rows` rows are padded to that many: oneDNN streams weights faster at a few rows than at one or two
    (on Zen 4, 32 GB/s at four rows and 27 at one). The start-up probe finds the number.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, min_rows: int = 1) -> None:
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._bias = bias
        self._min_rows = min_rows

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows >= self._min_rows:
            return self._product(x)
        return self._product(functional.pad(x, (0, 0, 0, self._min_rows - rows)))[:rows]

    def wide(self, x: Tensor) -> Tensor:
        return self(x).float()

    @property
    def logits_dtype(self) -> torch.dtype:
        return self.dtype

    def logits(self, x: Tensor, into: Tensor | None = None) -> Tensor:
        return self(x) if into is None else into.copy_(self(x))

    def _product(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return product


class PlainLinear:
    """An unpacked weight, where packing is not supported."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)

    def wide(self, x: Tensor) -> Tensor:
        return self(x).float()

    @property
    def logits_dtype(self) -> torch.dtype:
        return self.dtype

    def logits(self, x: Tensor, into: Tensor | None = None) -> Tensor:
        return self(x) if into is None else into.copy_(self(x))
