"""Scales of keys and values in 8-bit floats, one of each for a layer: what is stored times its scale is the number.

    model.layers.N.self_attn.k_scale, .v_scale
    model.layers.N.self_attn.k_proj.output_scale, .v_proj.output_scale  older, of compressed-tensors

A scale that is missing in a layer that has the other is 1. Only KV that is kept in fp8 uses them.
"""

from collections.abc import MutableMapping

import numpy as np

from engine.checkpoints.quantization.layers import LayerReader
from engine.checkpoints.quantization.scheme import SCALE_TYPES
from engine.checkpoints.safetensors_file import StoredTensor
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from kernels.arrays import FLOAT32
from kernels.weights import KVScales

_SHAPES = ((), (1,))


def take_kv_scales(
    config: ModelConfig, stored: MutableMapping[str, StoredTensor], reader: LayerReader
) -> dict[int, KVScales]:
    """The scales of layers by their index. Their tensors are removed from `stored`, which has the layout's names.

    Raises:
        UnsupportedCheckpoint: a scale has another shape or type, or is not positive and finite; the message names its
            tensor.
    """
    found: dict[int, KVScales] = {}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}.self_attn."
        scales = [_take(prefix, kind, stored, reader) for kind in ("k", "v")]
        if scales != [None, None]:
            key, value = (1.0 if scale is None else scale for scale in scales)
            found[layer] = KVScales(key, value)
    reader.release()
    return found


def _take(prefix: str, kind: str, stored: MutableMapping[str, StoredTensor], reader: LayerReader) -> float | None:
    names = [name for name in (f"{prefix}{kind}_scale", f"{prefix}{kind}_proj.output_scale") if name in stored]
    if not names:
        return None
    if len(names) > 1:
        raise UnsupportedCheckpoint(f"tensor {names[0]}: {names[1]} is in the file, too")
    tensor = stored.pop(names[0])
    if tensor.type not in SCALE_TYPES:
        raise UnsupportedCheckpoint(f"tensor {names[0]} has type {tensor.type}, not one of {', '.join(SCALE_TYPES)}")
    if tensor.shape not in _SHAPES:
        raise UnsupportedCheckpoint(f"tensor {names[0]} has shape {list(tensor.shape)}, not [1]")
    scale = float(reader.tensor(names[0], tensor).astype(FLOAT32).reshape(()))
    if not 0 < scale < np.inf:
        raise UnsupportedCheckpoint(f"tensor {names[0]}: {scale} is not a positive, finite scale")
    return scale
