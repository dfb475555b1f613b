"""GPTQ (Frantar et al., arXiv 2210.17323) as AutoGPTQ and GPTQModel store it.

    X.qweight  int32 [in bits / 32, out]      integers packed along the inputs, lowest bits first
    X.qzeros   int32 [groups, out bits / 32]  zero points packed along the outputs
    X.scales   [groups, out]
    X.g_idx    int32 [in]                     the group of each input

The zero points of `checkpoint_format` "gptq" are stored less one, those of "gptq_v2" as they are. The zero point of
symmetric weights is the middle of the range, whatever is stored: checkpoints of both kinds declare "gptq".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.checkpoints.json_keys import Keys, shown
from engine.checkpoints.quantization.patterns import compiled
from engine.checkpoints.quantization.scheme import (
    SCALE_TYPES,
    IntegerScheme,
    LayerScheme,
    QuantizedLayer,
    TensorSpec,
    divided,
)
from kernels.arrays import Array, Bytes
from kernels.integers import BITS, GroupedIntegers, in_order, unpacked

_HEAD = "lm_head"
_WORD_BITS = 32
_INERT = frozenset(
    (
        "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs",
        "damp_auto_increment", "damp_percent", "dataset", "disable_exllama", "exllama_config", "is_marlin_format",
        "max_input_length", "meta", "method", "model_file_base_name", "model_name_or_path", "model_seqlen",
        "module_name_preceding_first_block", "mse", "offload_to_disk", "pad_token_id", "quant_method", "quantizer",
        "static_groups", "tokenizer", "true_sequential", "use_exllama", "version",
    )
)  # fmt: skip
"""Keys that tell how the checkpoint was made, or how to run it."""
_READ = ("bits", "group_size", "sym", "desc_act", "lm_head", "dynamic", "modules_in_block_to_quantize", "pack_dtype")


@dataclass(frozen=True, slots=True)
class _Options:
    bits: int
    group_size: int | None
    sym: bool
    desc_act: bool


class GPTQFormat:
    """See `WeightFormat`."""

    def __init__(self, keys: Keys) -> None:
        keys.only((*_READ, "format", "checkpoint_format"), _INERT)
        version = keys.text("checkpoint_format", keys.text("format", "gptq"))
        if version not in ("gptq", "gptq_v2"):
            raise keys.refuse("checkpoint_format", f"{version!r:.80} is not gptq or gptq_v2")
        if keys.text("pack_dtype", "int32") != "int32":
            raise keys.refuse("pack_dtype", f"{keys.values['pack_dtype']!r:.80} is not int32")
        self._zero_step = 1 if version == "gptq" else 0
        self._options = _options(keys, None)
        self._head = keys.flag("lm_head")
        self._modules = _modules(keys)
        self._rules = [
            (compiled(keys, "dynamic", name.partition(":")[2] or name), _rule(keys, name, value, self._options))
            for name, value in keys.mapping("dynamic").items()
        ]

    def scheme(self, module: str) -> LayerScheme | None:
        if module == _HEAD:
            return self._scheme(self._options) if self._head else None
        if self._modules is not None and not module.endswith(self._modules):
            return None
        for pattern, options in self._rules:
            if pattern.match(module):
                return None if options is None else self._scheme(options)
        return self._scheme(self._options)

    def _scheme(self, options: _Options) -> LayerScheme:
        return _GPTQScheme(options, self._zero_step)


class _GPTQScheme(IntegerScheme):
    """`zero_step`: what stored zero points lack."""

    def __init__(self, options: _Options, zero_step: int) -> None:
        super().__init__("gptq", options.bits, options.group_size, "g_idx" if options.desc_act else None)
        self._sym, self._zero_step = options.sym, zero_step

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, TensorSpec]:
        per_word, groups = _WORD_BITS // self.bits, self.groups(in_features)
        words, zero_words = (divided(size, per_word, f"{per_word} to a word") for size in (in_features, out_features))
        return {
            "qweight": TensorSpec(("I32",), ((words, out_features),)),
            "qzeros": TensorSpec(("I32",), ((groups, zero_words),)),
            "scales": TensorSpec(SCALE_TYPES, ((groups, out_features),)),
            "g_idx": TensorSpec(("I32",), ((in_features,),), required=self.index is not None),
        }

    def integers(self, layer: QuantizedLayer) -> GroupedIntegers:
        groups = layer.tensors.get("g_idx")
        if self.index is None and groups is not None and not np.array_equal(groups, self._in_order(layer)):
            raise layer.refuse("g_idx", "groups are not in order, and desc_act is false")
        scales = np.ascontiguousarray(layer.scales("scales").T)
        zero_points: Bytes = np.full(scales.shape, 1 << (self.bits - 1), np.uint8)
        if not self._sym:
            zero_points = np.ascontiguousarray(self._zero_points(layer.tensors["qzeros"]).T)
        return GroupedIntegers(self.bits, in_order(layer.tensors["qweight"].T), scales, zero_points)

    def _zero_points(self, words: Array) -> Bytes:
        """uint8 [groups, out]. GPTQModel subtracts one from whole words, where a zero point of 0 borrows from its
        neighbour; added to whole words, it gets that back."""
        ones = sum(1 << shift for shift in range(0, _WORD_BITS, self.bits))
        raised = words.view(np.uint32) + np.uint32(ones * self._zero_step)
        return unpacked(in_order(raised.view(np.int32)), self.bits)

    def _in_order(self, layer: QuantizedLayer) -> Array:
        return np.arange(layer.in_features) // (self.group_size or layer.in_features)


def _options(keys: Keys, base: _Options | None) -> _Options:
    """The options of a config, or of a rule in `dynamic` where `base` has the others."""
    bits = keys.size("bits", None if base is None else base.bits)
    if bits not in BITS:
        raise keys.refuse("bits", f"{bits} is not 4 or 8")
    return _Options(
        bits,
        keys.group_size("group_size") if base is None or "group_size" in keys.values else base.group_size,
        keys.flag("sym", True if base is None else base.sym),
        keys.flag("desc_act", False if base is None else base.desc_act),
    )


def _rule(keys: Keys, name: str, value: Any, base: _Options) -> _Options | None:
    """The options of modules that a rule of `dynamic` selects; None if it excludes them."""
    if name.startswith("-:"):
        return None
    if not isinstance(value, dict):
        raise keys.refuse("dynamic", f"{shown(name)} is not an object")
    own = replace(keys, values=value, prefix=f"{keys.prefix}dynamic.{shown(name)}.")
    own.only(("bits", "group_size", "sym", "desc_act"), frozenset(("damp_percent", "mse", "static_groups")))
    return _options(own, base)


def _modules(keys: Keys) -> tuple[str, ...] | None:
    """Ends of the names of quantised modules; None: all modules of the layers."""
    listed = keys.values.get("modules_in_block_to_quantize")
    if listed is None:
        return None
    names = [name for entry in listed for name in (entry if isinstance(entry, list) else [entry])]
    if not isinstance(listed, list) or not all(isinstance(name, str) and name for name in names):
        raise keys.refuse("modules_in_block_to_quantize", "not lists of names")
    return tuple(f".{name}" for name in names)
