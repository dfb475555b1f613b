"""Stored blocks of GGUF tensors, expanded to plain numbers."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.models.gguf_header import BlockType

_PLAIN: dict[str, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def expand(rows: npt.NDArray[np.uint8], block: BlockType, dtype: torch.dtype) -> torch.Tensor:
    """Rows of stored bytes [..., row bytes] as numbers [..., row weights].

    Blocks are expanded in float32 by the `gguf` package, the format's own reference, and then rounded to
    `dtype`. Types that are no blocks are viewed in place: the result may share memory with `rows`.
    """
    if block.name in _PLAIN:
        return torch.from_numpy(rows).view(_PLAIN[block.name]).to(dtype)
    # Imported here because it costs more than a start from expanded weights takes.
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    numbers: npt.NDArray[Any] = dequantize(rows, GGMLQuantizationType(block.code))
    return torch.from_numpy(numbers).to(dtype)
