"""Matrix products with weights laid out once for oneDNN.

At few rows a product streams its weights from memory. In oneDNN's blocked layout it does so 1.5 to 2 times as fast
as `torch.nn.functional.linear` does from row-major bf16.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build and this processor have oneDNN's packed product for the dtype."""
    if not torch._C._has_mkldnn:
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


class PackedLinear:
    """A weight [out, in] in oneDNN's layout; the row-major original is not kept.

    `pad_single_row` computes one row as two, where the start-up probe found that faster.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, pad_single_row: bool = False) -> None:
        self.out_features, self.in_features = weight.shape
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._bias = bias
        self._pad_single_row = pad_single_row

    def __call__(self, x: Tensor) -> Tensor:
        if self._pad_single_row and x.shape[0] == 1:
            return self._product(x.expand(2, -1).contiguous())[:1]
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return product


class PlainLinear:
    """A weight as it is, where nothing can be packed."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)
