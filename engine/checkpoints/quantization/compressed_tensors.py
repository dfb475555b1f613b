"""compressed-tensors, the format of llm-compressor: groups of modules, each with a scheme of its own.

    pack-quantized   X.weight_packed  int32 [out, in bits / 32]  integers plus 2^(bits - 1), lowest bits first
                     X.weight_scale   [out, groups]
                     X.weight_zero_point  int32 [out bits / 32, groups]  packed along the outputs; asymmetric only
                     X.weight_shape   int64 [2]
                     X.weight_g_idx   int32 [in]  the group of each input; `actorder` "group" only
    int-quantized    X.weight int8 [out, in], X.weight_scale [out, 1] or [1], X.weight_zero_point likewise
                     X.input_scale [1]  of inputs whose scale is static
    float-quantized  X.weight e4m3 [out, in], X.weight_scale [out, 1], [1] or one for each block
    mxfp4-pack-quantized  see `mxfp4`

Activations are rounded to int8 if `input_activations` says so, weights and activations are symmetric, and the scale is
dynamic, or static and stored. On a CPU they are rounded to no other numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from engine.checkpoints.json_keys import Keys, shown
from engine.checkpoints.quantization.float8 import Float8Scheme, block_of
from engine.checkpoints.quantization.mxfp4 import MXFP4Scheme
from engine.checkpoints.quantization.patterns import compiled
from engine.checkpoints.quantization.scheme import (
    SCALE_TYPES,
    IntegerScheme,
    LayerScheme,
    QuantizedLayer,
    TensorSpec,
    divided,
)
from kernels.arrays import FLOAT32, Bytes, Floats
from kernels.integers import BITS, GroupedIntegers, in_order, unpacked
from kernels.microscaling import BLOCK_INPUTS
from kernels.weights import StoredWeight

_WORD_BITS = 32
_INPUT_SCALE = "input_scale"
_KV_SCHEME = "kv_cache_scheme"
_PATTERN = "re:"
_CLASS = "Linear"
_MXFP4 = "mxfp4-pack-quantized"
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", _MXFP4, "mixed-precision")
_INERT = frozenset(("quant_method", "quantization_status", "global_compression_ratio", "version"))
_ACTIVATIONS = frozenset(("input_activations",))
_ARGUMENTS = ("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "dynamic", "actorder")
_INERT_ARGUMENTS = frozenset(("observer", "observer_kwargs", "scale_dtype", "zp_dtype"))


class CompressedTensorsFormat:
    """See `WeightFormat`."""

    def __init__(self, keys: Keys) -> None:
        keys.only(("config_groups", "ignore", "format", _KV_SCHEME), _INERT)
        _check_kv_scheme(keys)
        status = keys.text("quantization_status", "compressed")
        if status not in ("compressed", "frozen"):  # older writers left the second
            raise keys.refuse("quantization_status", f"{status!r:.80} is not compressed")
        self._ignored = [_matcher(keys, "ignore", name) for name in keys.names("ignore")]
        self._groups: list[tuple[list[_Matcher], LayerScheme]] = []
        for name, value in keys.mapping("config_groups").items():
            if not isinstance(value, dict):
                raise keys.refuse("config_groups", f"{shown(name)} is not an object")
            group = replace(keys, values=value, prefix=f"{keys.prefix}config_groups.{shown(name)}.")
            group.only(("targets", "weights", "format"), _ACTIVATIONS)
            form = group.text("format", keys.text("format", "")) or "missing"
            if form not in _FORMATS:
                raise group.refuse("format", f"{form!r:.80} is not one of {', '.join(_FORMATS)}")
            matchers = [_matcher(group, "targets", target) for target in group.names("targets")]
            self._groups.append((matchers, _scheme(group, form)))

    def scheme(self, module: str) -> LayerScheme | None:
        if any(matcher.matches(module) for matcher in self._ignored):
            return None
        found = [
            (matcher.precedence, index)
            for index, (matchers, _) in enumerate(self._groups)
            for matcher in matchers
            if matcher.matches(module)
        ]
        return self._groups[min(found)[1]][1] if found else None


def _check_kv_scheme(keys: Keys) -> None:
    """Scales of keys and values are read by `kv_scales`.

    Raises:
        UnsupportedCheckpoint: they are not of 8-bit floats, one for each layer.
    """
    scheme = replace(keys, values=keys.mapping(_KV_SCHEME), prefix=f"{keys.prefix}{_KV_SCHEME}.")
    scheme.only(_ARGUMENTS, _INERT_ARGUMENTS)
    stated = scheme.size("num_bits", 8), scheme.text("type", "float"), scheme.text("strategy", "tensor")
    if stated != (8, "float", "tensor") or scheme.flag("dynamic") or not scheme.flag("symmetric", True):
        raise keys.refuse(_KV_SCHEME, f"{dict(scheme.values)!r:.200} is not of static 8-bit floats by tensor")


@dataclass(frozen=True, slots=True)
class _Matcher:
    """A target: a module's name, a pattern from the start of the name, or the class of linear layers, in this order of
    precedence."""

    name: str
    pattern: Any = None

    @property
    def precedence(self) -> int:
        return 1 if self.pattern is not None else 2 if self.name == _CLASS else 0

    def matches(self, module: str) -> bool:
        if self.pattern is not None:
            return self.pattern.match(module) is not None
        return self.name in (module, _CLASS)


def _matcher(keys: Keys, key: str, name: str) -> _Matcher:
    if name.startswith(_PATTERN):
        return _Matcher(name, compiled(keys, key, name.removeprefix(_PATTERN)))
    return _Matcher(name)


def _scheme(group: Keys, form: str) -> LayerScheme:
    value = group.values.get("weights")
    if not isinstance(value, dict):
        raise group.refuse("weights", "is missing, or no object")
    keys = replace(group, values=value, prefix=f"{group.prefix}weights.")
    keys.only(_ARGUMENTS, _INERT_ARGUMENTS)
    if keys.flag("dynamic"):
        raise keys.refuse("dynamic", "true: weights have stored scales")
    order = keys.values.get("actorder")
    if order not in (None, False, True, "static", "weight", "group", "dynamic"):
        raise keys.refuse("actorder", f"{order!r:.80} is not understood")
    by_index = order in (True, "group", "dynamic")
    bits, kind = keys.size("num_bits", 8), keys.text("type", "int")
    strategy = keys.text("strategy", "tensor" if keys.values.get("group_size") is None else "group")
    if kind == "float":
        return _float_scheme(keys, form, bits, strategy)
    if kind != "int":
        raise keys.refuse("type", f"{kind!r:.80} is not int or float")
    if strategy not in ("tensor", "channel", "group"):
        raise keys.refuse("strategy", f"{strategy!r:.80} is not tensor, channel or group")
    group_size = keys.group_size("group_size") if strategy == "group" else None
    symmetric = keys.flag("symmetric", True)
    if form == "pack-quantized":
        if bits not in BITS:
            raise keys.refuse("num_bits", f"{bits} is not 4 or 8")
        return _PackedScheme(bits, group_size, symmetric, "weight_g_idx" if by_index else None)
    if by_index:
        raise keys.refuse("actorder", f"{order!r:.80} in {form} is not understood")
    if form in ("float-quantized", _MXFP4) or bits > 8:
        raise keys.refuse("num_bits", f"{bits}-bit integers are not {form}")
    return _Int8Scheme(group_size, symmetric, _rounding_of_inputs(group))


class _InputRounding(Enum):
    """How inputs were meant to be rounded to int8."""

    NONE = "none"
    BY_TOKEN = "by token"
    STATIC = "static"


def _rounding_of_inputs(group: Keys) -> _InputRounding:
    value = group.values.get("input_activations")
    if not isinstance(value, dict):
        return _InputRounding.NONE
    kind = value.get("num_bits"), value.get("type", "int"), value.get("symmetric", True)
    if kind != (8, "int", True):
        return _InputRounding.NONE
    return _InputRounding.BY_TOKEN if value.get("dynamic") is True else _InputRounding.STATIC


def _float_scheme(keys: Keys, form: str, bits: int, strategy: str) -> LayerScheme:
    if form == _MXFP4:
        stated = (bits, strategy, keys.group_size("group_size"))
        if stated != (4, "group", BLOCK_INPUTS):
            raise keys.refuse("num_bits", f"{form} of {stated} is not of 4 bits in groups of {BLOCK_INPUTS}")
        return MXFP4Scheme("weight_packed", "weight_scale")
    if bits != 8 or form not in ("float-quantized", "naive-quantized"):
        raise keys.refuse("num_bits", f"{bits}-bit floats in {form} are not understood")
    if not keys.flag("symmetric", True):
        raise keys.refuse("symmetric", "false: floats have no zero point")
    if strategy not in ("tensor", "channel", "block"):
        raise keys.refuse("strategy", f"{strategy!r:.80} is not tensor, channel or block")
    block = block_of(keys, "block_structure") if strategy == "block" else None
    return Float8Scheme("compressed-tensors, 8-bit floats", ("weight_scale",), block)


class _PackedScheme(IntegerScheme):
    def __init__(self, bits: int, group_size: int | None, symmetric: bool, index: str | None) -> None:
        super().__init__("compressed-tensors", bits, group_size, index)
        self._symmetric = symmetric

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, TensorSpec]:
        groups, per_word = self.groups(in_features), _WORD_BITS // self.bits
        words = divided(in_features, per_word, f"{per_word} to a word")
        shapes = ((out_features, groups),) if groups > 1 else ((out_features, 1), (out_features,), (1,), (1, 1))
        return {
            "weight_packed": TensorSpec(("I32",), ((out_features, words),)),
            "weight_scale": TensorSpec(SCALE_TYPES, shapes),
            "weight_zero_point": TensorSpec(
                ("I32",), ((-(-out_features // per_word), groups),), required=not self._symmetric
            ),
            "weight_g_idx": TensorSpec(("I32",), ((in_features,),), required=self.index is not None),
            "weight_shape": TensorSpec(("I64", "I32"), ((2,),), required=False),
        }

    def integers(self, layer: QuantizedLayer) -> GroupedIntegers:
        shape = layer.tensors.get("weight_shape")
        if shape is not None and shape.tolist() != [layer.out_features, layer.in_features]:
            raise layer.refuse("weight_shape", f"{shape.tolist()}, not {[layer.out_features, layer.in_features]}")
        scales = _by_row(layer)
        zero_points: Bytes = np.full(scales.shape, 1 << (self.bits - 1), np.uint8)
        if not self._symmetric:
            words = layer.tensors["weight_zero_point"].T
            zero_points = np.ascontiguousarray(unpacked(in_order(words), self.bits).T[: layer.out_features])
        return GroupedIntegers(self.bits, in_order(layer.tensors["weight_packed"]), scales, zero_points)


class _Int8Scheme(IntegerScheme):
    """Integers of up to 8 bits, a signed byte each."""

    def __init__(self, group_size: int | None, symmetric: bool, inputs: _InputRounding) -> None:
        super().__init__("compressed-tensors", 8, group_size)
        self._symmetric = symmetric
        self._inputs = inputs if symmetric and group_size is None else _InputRounding.NONE

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, TensorSpec]:
        groups = self.groups(in_features)
        shapes = ((out_features, groups),) if groups > 1 else ((out_features, 1), (out_features,), (1,), (1, 1))
        return {
            "weight": TensorSpec(("I8",), ((out_features, in_features),)),
            "weight_scale": TensorSpec(SCALE_TYPES, shapes),
            "weight_zero_point": TensorSpec(("I8",), shapes, required=not self._symmetric),
            **dict.fromkeys(
                (_INPUT_SCALE, "input_zero_point"), TensorSpec((*SCALE_TYPES, "I8"), ((), (1,)), required=False)
            ),
        }

    def integers(self, layer: QuantizedLayer) -> GroupedIntegers:
        scales = _by_row(layer)
        zero_points: Bytes = np.full(scales.shape, 128, np.uint8)
        if not self._symmetric:
            stored = layer.tensors["weight_zero_point"]
            zero_points ^= stored.view(np.uint8).reshape(-1, scales.shape[1])
        return GroupedIntegers(8, layer.tensors["weight"].view(np.uint8) ^ np.uint8(128), scales, zero_points)

    def blocks(self, layer: QuantizedLayer) -> StoredWeight:
        blocks = super().blocks(layer)
        if self._inputs is _InputRounding.STATIC:
            scale = _input_scale(layer)
            return replace(blocks, rounded_inputs=scale is not None, input_scale=scale)
        return replace(blocks, rounded_inputs=self._inputs is _InputRounding.BY_TOKEN)


def _input_scale(layer: QuantizedLayer) -> float | None:
    """The stored scale of inputs; None: there is none that inputs could be rounded by."""
    stored = layer.tensors.get(_INPUT_SCALE)
    scale = 0.0 if stored is None else float(stored.astype(FLOAT32).reshape(()))
    return scale if 0 < scale < np.inf else None


def _by_row(layer: QuantizedLayer) -> Floats:
    """Scales float32 [out, groups]; one scale of the weight is repeated."""
    scales = layer.scales("weight_scale")
    groups = scales.size // len(scales)
    by_row: Floats = np.repeat(scales.reshape(-1, groups), layer.out_features // len(scales), axis=0)
    return by_row
