"""MXFP4 (OCP Microscaling Formats 1.0, section 5.3): 32 inputs of a row share a power of two.

    gpt-oss             X.blocks uint8 [out, in / 32, 16], X.scales uint8 [out, in / 32]; experts only
    compressed-tensors  X.weight_packed uint8 [out, in / 2], X.weight_scale uint8 [out, in / 32]

A byte has two numbers, the first in the lower half.
"""

from collections.abc import Mapping

from engine.checkpoints.json_keys import Keys
from engine.checkpoints.quantization.scheme import LayerScheme, QuantizedLayer, TensorSpec, divided
from engine.models.layout import Shape
from kernels import microscaling
from kernels.arrays import Bytes, Floats
from kernels.weights import StoredWeight

_GROUP = microscaling.BLOCK_INPUTS
_EXPERTS = ".mlp.experts."


class MXFP4Format:
    """`quant_method: mxfp4`. See `WeightFormat`. Only experts are quantised."""

    def __init__(self, keys: Keys) -> None:
        keys.only((), ("quant_method", "modules_to_not_convert", "dequantize"))
        self._scheme = MXFP4Scheme()

    def scheme(self, module: str) -> LayerScheme | None:
        return self._scheme if _EXPERTS in module else None


class MXFP4Scheme:
    """See `LayerScheme`. codes, scales: suffixes of the tensors."""

    description = "mxfp4"

    def __init__(self, codes: str = "blocks", scales: str = "scales") -> None:
        self._codes, self._scales = codes, scales

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, TensorSpec]:
        groups = divided(in_features, _GROUP, f"a group of {_GROUP}")
        by_row: Shape = (out_features, in_features // 2)
        shape = (out_features, groups, _GROUP // 2) if self._codes == "blocks" else by_row
        return {
            self._codes: TensorSpec(("U8",), (shape,)),
            self._scales: TensorSpec(("U8", "F8_E8M0"), ((out_features, groups),)),
        }

    def block_format(self, in_features: int) -> str | None:
        return microscaling.FORMAT

    def floats(self, layer: QuantizedLayer) -> Floats:
        return microscaling.floats(*self._pairs(layer))

    def blocks(self, layer: QuantizedLayer) -> StoredWeight:
        return microscaling.blocks(*self._pairs(layer))

    def _pairs(self, layer: QuantizedLayer) -> tuple[Bytes, Bytes]:
        """Codes uint8 [out_features, in_features / 2] and exponents.

        Raises:
            UnsupportedCheckpoint: a scale is not a number.
        """
        exponents: Bytes = layer.tensors[self._scales].view("uint8")
        if (exponents == microscaling.NOT_A_NUMBER).any():
            raise layer.refuse(self._scales, "a scale is not finite")
        return layer.tensors[self._codes].reshape(layer.out_features, -1), exponents
