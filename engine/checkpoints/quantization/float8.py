"""Weights in 8-bit floats (e4m3) with scales that multiply: W = w scale.

The two layouts are DeepSeek's `quant_method: fp8`, whose scales are named `weight_scale_inv` in spite of what they do,
and compressed-tensors' float-quantized.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.checkpoints.json_keys import Keys
from engine.checkpoints.quantization.scheme import SCALE_TYPES, LayerScheme, QuantizedLayer, TensorSpec
from engine.models.config import UnsupportedCheckpoint
from engine.models.layout import Shape
from kernels import floats8
from kernels.arrays import Bytes, Floats
from kernels.weights import StoredWeight

E4M3 = "F8_E4M3"
_MAX_BLOCK = 1 << 16
_INERT = frozenset(("modules_to_not_convert", "ignored_layers", "quant_method", "dequantize", "lm_head"))
"""Which modules are plain shows in what is stored."""
_READ = ("activation_scheme", "fmt", "weight_block_size", "scale_fmt")


class FP8Format:
    """`quant_method: fp8`. See `WeightFormat`."""

    def __init__(self, keys: Keys) -> None:
        keys.only(_READ, _INERT)
        if keys.text("fmt", "e4m3") != "e4m3":
            raise keys.refuse("fmt", f"{keys.values['fmt']!r:.80} is not e4m3")
        if keys.text("activation_scheme", "dynamic") not in ("dynamic", "static"):
            raise keys.refuse("activation_scheme", f"{keys.values['activation_scheme']!r:.80} is not dynamic or static")
        if keys.text("scale_fmt", "float") not in ("float", "ue8m0"):
            raise keys.refuse("scale_fmt", f"{keys.values['scale_fmt']!r:.80} is not float or ue8m0")
        block = keys.values.get("weight_block_size")
        names = ("weight_scale_inv",) if block is not None else ("weight_scale_inv", "weight_scale")
        self._scheme = Float8Scheme("fp8", names, None if block is None else block_of(keys, "weight_block_size"))

    def scheme(self, module: str) -> LayerScheme | None:
        return self._scheme


@dataclass(frozen=True, slots=True)
class Float8Scheme:
    """scale_names: names of the tensor of scales, of which a layer has one. block: rows and columns that share a scale;
    None: each row, or the whole weight, has a scale."""

    method: str
    scale_names: tuple[str, ...]
    block: tuple[int, int] | None

    @property
    def description(self) -> str:
        return self.method if self.block is None else f"{self.method}, blocks of {self.block[0]}x{self.block[1]}"

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, TensorSpec]:
        scale = TensorSpec((*SCALE_TYPES, "F8_E8M0"), self._scale_shapes(out_features, in_features), required=False)
        return {
            "weight": TensorSpec((E4M3,), ((out_features, in_features),)),
            **dict.fromkeys(self.scale_names, scale),
            # Of activations that a GPU would round; here they are not.
            **dict.fromkeys(("input_scale", "activation_scale"), TensorSpec(SCALE_TYPES, ((), (1,)), required=False)),
        }

    def block_format(self, in_features: int) -> str | None:
        if self.block is None or self.block[1] >= in_features:
            return floats8.block_format(in_features)
        # A last block may be cut off by the weight's end: what is left must be whole, too.
        return floats8.block_format(math.gcd(self.block[1], in_features))

    def floats(self, layer: QuantizedLayer) -> Floats:
        numbers: Floats = floats8.VALUES[self._codes(layer)]
        scales = self._scales(layer)
        if self.block is None:
            numbers *= scales.reshape(-1, 1)
            return numbers
        rows, columns = self.block
        # A last block may be cut off by the weight's end.
        by_column = np.repeat(scales, columns, axis=1)[:, : layer.in_features]
        for index, scale in enumerate(by_column):
            numbers[index * rows : (index + 1) * rows] *= scale
        return numbers

    def blocks(self, layer: QuantizedLayer) -> StoredWeight:
        format = self.block_format(layer.in_features)
        assert format is not None, f"{layer.name} has no block format"
        inputs = int(format.rpartition("_")[2])
        count = layer.in_features // inputs
        scales = self._scales(layer)
        if self.block is None:
            by_block = np.broadcast_to(scales.reshape(-1, 1), (layer.out_features, count))
        else:
            rows, columns = self.block
            by_row = np.repeat(scales, rows, axis=0)[: layer.out_features]
            by_block = by_row[:, np.arange(count) * inputs // columns]
        return floats8.blocks(format, self._codes(layer), by_block)

    def _codes(self, layer: QuantizedLayer) -> Bytes:
        codes: Bytes = layer.tensors["weight"].view(np.uint8)
        if ((codes & floats8.NOT_A_NUMBER) == floats8.NOT_A_NUMBER).any():
            raise layer.refuse("weight", "a number is not finite")
        return codes

    def _scales(self, layer: QuantizedLayer) -> Floats:
        found = [name for name in self.scale_names if name in layer.tensors]
        if len(found) != 1:
            raise UnsupportedCheckpoint(f"tensor {layer.name}.{self.scale_names[0]}: there are {len(found)} scales")
        return layer.scales(found[0])

    def _scale_shapes(self, out_features: int, in_features: int) -> tuple[Shape, ...]:
        if self.block is None:
            return (), (1,), (1, 1), (out_features,), (out_features, 1)
        rows, columns = self.block
        return ((-(-out_features // rows), -(-in_features // columns)),)


def block_of(keys: Keys, key: str) -> tuple[int, int]:
    """Rows and columns of a block, from a list of two."""
    value = keys.values[key]
    if not isinstance(value, list) or len(value) != 2:
        raise keys.refuse(key, f"{value!r:.80} is not a list of two sizes")
    rows, columns = (Keys({key: size}, keys.prefix).size(key, maximum=_MAX_BLOCK) for size in value)
    return rows, columns
