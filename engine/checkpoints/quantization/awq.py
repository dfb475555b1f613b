"""AWQ (Lin et al., arXiv 2306.00978) in AutoAWQ's "gemm" layout.

    X.qweight  int32 [in, out / 8]      integers packed along the outputs
    X.qzeros   int32 [groups, out / 8]  zero points, packed alike
    X.scales   [groups, out]

The eight integers of a word, lowest bits first, are outputs 0, 2, 4, 6, 1, 3, 5 and 7 of it.
"""

from collections.abc import Mapping

import numpy as np

from engine.checkpoints.json_keys import Keys
from engine.checkpoints.quantization.scheme import (
    SCALE_TYPES,
    IntegerScheme,
    LayerScheme,
    QuantizedLayer,
    TensorSpec,
    divided,
)
from kernels.arrays import Array, Bytes
from kernels.integers import GroupedIntegers

_BITS = 4
_PER_WORD = 8
_OUTPUT_OF_NIBBLE = (0, 2, 4, 6, 1, 3, 5, 7)
_HEAD = "lm_head"
_READ = ("bits", "group_size", "zero_point", "version", "format", "checkpoint_format", "pack_dtype")
_INERT = frozenset(
    (
        "backend", "desc_act", "do_fuse", "exllama_config", "fuse_max_seq_len", "lm_head", "meta", "method",
        "modules_to_fuse", "modules_to_not_convert", "quant_method", "sym", "true_sequential",
    )
)  # fmt: skip
"""Keys that tell how the checkpoint was made, or how to run it; which modules are plain shows in what is stored."""


class AWQFormat:
    """See `WeightFormat`."""

    def __init__(self, keys: Keys) -> None:
        keys.only(_READ, _INERT)
        if keys.size("bits", _BITS) != _BITS:
            raise keys.refuse("bits", f"{keys.values['bits']!r:.80} is not {_BITS}")
        for name in ("version", "format", "checkpoint_format"):
            if keys.text(name, "gemm").lower() != "gemm":
                raise keys.refuse(name, f"{keys.values[name]!r:.80} is not gemm")
        if keys.text("pack_dtype", "int32") != "int32":
            raise keys.refuse("pack_dtype", f"{keys.values['pack_dtype']!r:.80} is not int32")
        self._scheme = _AWQScheme(keys.group_size("group_size"), keys.flag("zero_point", True))

    def scheme(self, module: str) -> LayerScheme | None:
        return None if module == _HEAD else self._scheme


class _AWQScheme(IntegerScheme):
    def __init__(self, group_size: int | None, zero_point: bool) -> None:
        super().__init__("awq", _BITS, group_size)
        self._zero_point = zero_point

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, TensorSpec]:
        groups, words = self.groups(in_features), divided(out_features, _PER_WORD, f"{_PER_WORD} to a word")
        divided(in_features, 2, "2 to a byte")
        return {
            "qweight": TensorSpec(("I32",), ((in_features, words),)),
            "qzeros": TensorSpec(("I32",), ((groups, words),), required=self._zero_point),
            "scales": TensorSpec(SCALE_TYPES, ((groups, out_features),)),
        }

    def integers(self, layer: QuantizedLayer) -> GroupedIntegers:
        scales = np.ascontiguousarray(layer.scales("scales").T)
        zero_points: Bytes = np.full(scales.shape, 1 << (_BITS - 1), np.uint8)
        if self._zero_point:
            zero_points = _by_output(layer.tensors["qzeros"])
        words = layer.tensors["qweight"]
        codes = _by_output(words[0::2])
        codes |= _by_output(words[1::2]) << 4
        return GroupedIntegers(_BITS, codes, scales, zero_points)


def _by_output(words: Array) -> Bytes:
    """The integers of words [n, out / 8], uint8 [out, n]."""
    columns = np.ascontiguousarray(words.T).view(np.uint32)
    numbers: Bytes = np.empty((len(columns), _PER_WORD, columns.shape[1]), np.uint8)
    for nibble, output in enumerate(_OUTPUT_OF_NIBBLE):
        numbers[:, output] = (columns >> np.uint32(4 * nibble)) & np.uint32(15)
    return numbers.reshape(-1, columns.shape[1])
