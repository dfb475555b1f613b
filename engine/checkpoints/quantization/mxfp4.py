"""MXFP4 (OCP Microscaling Formats 1.0, section 5.3) as gpt-oss stores its experts.

32 inputs of a row share a power of two. Of a block's 16 bytes, byte j holds elements 2j (low half) and 2j + 1; GGUF's
blocks hold the same numbers as elements j and j + 16.
"""

from collections.abc import Mapping

import numpy as np

from engine.checkpoints.json_keys import Keys
from engine.checkpoints.quantization.scheme import LayerScheme, QuantizedLayer, TensorSpec, divided
from kernels.arrays import FLOAT32, Array, Floats
from kernels.weights import StoredWeight

_GROUP = 32
_VALUES: Floats = np.array((0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6), FLOAT32)
"""The number of each code (e2m1)."""
_BIAS, _NAN = 127, 255
_EXPERTS = ".mlp.experts."


class MXFP4Format:
    """`quant_method: mxfp4`. See `WeightFormat`. Only experts are quantised."""

    def __init__(self, keys: Keys) -> None:
        keys.only((), ("quant_method", "modules_to_not_convert", "dequantize"))
        self._scheme = MXFP4Scheme()

    def scheme(self, module: str) -> LayerScheme | None:
        return self._scheme if _EXPERTS in module else None


class MXFP4Scheme:
    """See `LayerScheme`. `blocks`: two codes a byte, [out_features, groups, 16]. `scales`: exponents, [out_features,
    groups]."""

    description = "mxfp4"

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, TensorSpec]:
        groups = divided(in_features, _GROUP, f"a group of {_GROUP}")
        return {
            "blocks": TensorSpec(("U8",), ((out_features, groups, _GROUP // 2),)),
            "scales": TensorSpec(("U8",), ((out_features, groups),)),
        }

    def block_format(self, in_features: int) -> str | None:
        return "mxfp4"

    def floats(self, layer: QuantizedLayer) -> Floats:
        codes, exponents = self._codes(layer)
        numbers = np.ldexp(_VALUES[codes], exponents[:, :, None].astype(np.int32) - _BIAS)
        return numbers.reshape(layer.out_features, layer.in_features)

    def blocks(self, layer: QuantizedLayer) -> StoredWeight:
        codes, exponents = self._codes(layer)
        halves = codes[:, :, : _GROUP // 2] | codes[:, :, _GROUP // 2 :] << 4
        rows = np.concatenate((exponents[:, :, None], halves), axis=2).reshape(layer.out_features, -1)
        return StoredWeight("mxfp4", rows, layer.out_features, layer.in_features)

    def _codes(self, layer: QuantizedLayer) -> tuple[Array, Array]:
        """Codes u8 [out_features, groups, 32] and exponents.

        Raises:
            UnsupportedCheckpoint: a scale is not a number.
        """
        blocks, exponents = layer.tensors["blocks"], layer.tensors["scales"]
        if (exponents == _NAN).any():
            raise layer.refuse("scales", "a scale is not finite")
        codes = np.stack((blocks & 15, blocks >> 4), axis=-1)
        return codes.reshape(*exponents.shape, _GROUP), exponents
