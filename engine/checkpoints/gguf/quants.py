"""Expands quantised blocks of GGUF tensors."""

from engine.checkpoints.gguf.header import BlockType
from kernels.arrays import BFLOAT16, FLOAT16, FLOAT32, Array, Bytes, Dtype

_PLAIN: dict[str, Dtype] = {"F32": FLOAT32, "F16": FLOAT16, "BF16": BFLOAT16}


def expand(rows: Bytes, block: BlockType, dtype: Dtype) -> Array:
    """Stored rows [..., row bytes] as numbers [..., row weights] in `dtype`.

    Blocks are expanded in float32 by the `gguf` package, the format's reference implementation, and rounded to `dtype`.
    Plain types are viewed in place: the result may share memory with `rows`.
    """
    if block.name in _PLAIN:
        return rows.view(_PLAIN[block.name]).astype(dtype, copy=False)
    # Imported here because it costs more than a start from expanded weights takes.
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    numbers: Array = dequantize(rows, GGMLQuantizationType(block.code))
    return numbers.astype(dtype, copy=False)
