"""bitsandbytes' 4-bit formats (QLoRA: Dettmers et al., arXiv 2305.14314): codes that choose from 16 numbers, a scale
for 64 of them over the flattened weight.

    X.weight              uint8 [out in / 2, 1]  codes, the first of two in the upper half
    X.weight.quant_map    float32 [16]           what codes choose from
    X.weight.absmax       float32 [blocks]       scales of 64 codes; with double quantisation uint8 [blocks], codes too:
    X.weight.nested_quant_map  float32 [256]     what these choose from,
    X.weight.nested_absmax     float32 [blocks / 256]  times a scale, plus `nested_offset` of
    X.weight.quant_state.bitsandbytes__nf4       JSON of the sizes above, and of the weight's shape
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.checkpoints.json_keys import Keys
from engine.checkpoints.quantization.scheme import LayerScheme, QuantizedLayer, TensorSpec, divided
from kernels.arrays import FLOAT32, Bytes, Floats
from kernels.weights import StoredWeight

_BLOCK = 64
_NESTED_BLOCK = 256
_LONGEST_STATE = 4096
_TYPES = ("nf4", "fp4")
_READ = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage")
_INERT = frozenset(
    (
        "_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype", "llm_int8_enable_fp32_cpu_offload",
        "llm_int8_has_fp16_weight", "llm_int8_skip_modules", "llm_int8_threshold", "quant_method",
    )
)  # fmt: skip
"""Which modules are plain shows in what is stored."""


class BitsAndBytesFormat:
    """See `WeightFormat`."""

    def __init__(self, keys: Keys) -> None:
        keys.only(_READ, _INERT)
        if keys.flag("load_in_8bit"):
            raise keys.refuse("load_in_8bit", "true: of bitsandbytes only 4 bits are read")
        if not keys.flag("load_in_4bit"):
            raise keys.refuse("load_in_4bit", "is not true")
        kind, storage = keys.text("bnb_4bit_quant_type", "fp4"), keys.text("bnb_4bit_quant_storage", "uint8")
        if kind not in _TYPES:
            raise keys.refuse("bnb_4bit_quant_type", f"{kind!r:.80} is not one of {', '.join(_TYPES)}")
        if storage != "uint8":
            raise keys.refuse("bnb_4bit_quant_storage", f"{storage!r:.80} is not uint8")
        self._scheme = _FourBits(kind, keys.flag("bnb_4bit_use_double_quant"))

    def scheme(self, module: str) -> LayerScheme | None:
        return self._scheme


class _FourBits:
    """`nested`: whether scales are quantised, too."""

    def __init__(self, kind: str, nested: bool) -> None:
        self._kind, self._nested = kind, nested
        self._state = f"weight.quant_state.bitsandbytes__{kind}"

    @property
    def description(self) -> str:
        return f"bitsandbytes, {self._kind}{', double quantisation' if self._nested else ''}"

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, TensorSpec]:
        count = divided(out_features * in_features, 2, "2 to a byte")
        blocks = -(-out_features * in_features // _BLOCK)
        nested = {
            "weight.nested_absmax": TensorSpec(("F32",), ((-(-blocks // _NESTED_BLOCK),),)),
            "weight.nested_quant_map": TensorSpec(("F32",), ((256,),)),
        }
        return {
            "weight": TensorSpec(("U8",), ((count, 1),)),
            "weight.quant_map": TensorSpec(("F32",), ((16,),)),
            "weight.absmax": TensorSpec(("U8" if self._nested else "F32",), ((blocks,),)),
            self._state: TensorSpec(("U8",), (), longest=_LONGEST_STATE),
            **(nested if self._nested else {}),
        }

    def block_format(self, in_features: int) -> str | None:
        return None

    def floats(self, layer: QuantizedLayer) -> Floats:
        state = self._read_state(layer)
        stored: Bytes = layer.tensors["weight"].reshape(-1)
        codes: Bytes = np.empty((len(stored), 2), np.uint8)
        np.right_shift(stored, 4, out=codes[:, 0])
        np.bitwise_and(stored, 15, out=codes[:, 1])
        numbers: Floats = layer.scales("weight.quant_map")[codes.reshape(-1)]
        scales = self._scales(layer, state)
        whole = len(numbers) // _BLOCK * _BLOCK
        by_block = numbers[:whole].reshape(-1, _BLOCK)
        by_block *= scales[: len(by_block), None]
        numbers[whole:] *= scales[-1]  # a last block may be cut off
        return numbers.reshape(layer.out_features, layer.in_features)

    def blocks(self, layer: QuantizedLayer) -> StoredWeight:
        raise AssertionError(f"{layer.name} has no block format")

    def _scales(self, layer: QuantizedLayer, state: Mapping[str, Any]) -> Floats:
        if not self._nested:
            return layer.scales("weight.absmax")
        scales: Floats = layer.scales("weight.nested_quant_map")[layer.tensors["weight.absmax"]]
        scales *= np.repeat(layer.scales("weight.nested_absmax"), _NESTED_BLOCK)[: len(scales)]
        scales += np.float32(state["nested_offset"])
        return scales

    def _read_state(self, layer: QuantizedLayer) -> Mapping[str, Any]:
        """The parsed `quant_state`.

        Raises:
            UnsupportedCheckpoint: it is malformed, or contradicts the config or the sizes of this module.
        """
        try:
            state = json.loads(bytes(layer.tensors[self._state]))
        except (ValueError, RecursionError) as error:
            raise layer.refuse(self._state, "is not JSON") from error
        if not isinstance(state, dict):
            raise layer.refuse(self._state, "is not an object")
        expected: dict[str, Any] = {
            "quant_type": self._kind,
            "blocksize": _BLOCK,
            "shape": [layer.out_features, layer.in_features],
        }
        if self._nested:
            expected["nested_blocksize"] = _NESTED_BLOCK
            offset = state.get("nested_offset")
            if not isinstance(offset, float) or not math.isfinite(offset) or abs(offset) > np.finfo(FLOAT32).max:
                raise layer.refuse(self._state, f"nested_offset {offset!r:.80} is not a finite number")
        for key, value in expected.items():
            if state.get(key) != value:
                raise layer.refuse(self._state, f"{key} is {state.get(key)!r:.80}, not {value!r}")
        return state
