"""The seam between quantised checkpoint formats and the rest: what a format states of a linear layer.

A format (`WeightFormat`) is made from a checkpoint's `quantization_config`. For a layer it gives a scheme. The scheme
names the layer's tensors, defines their meaning as float32, and packs them into a block format that backends compute
with, if one holds exactly the same numbers. Nothing else knows the formats.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.models.config import UnsupportedCheckpoint
from engine.models.layout import Shape
from kernels.arrays import FLOAT32, Array, Floats
from kernels.integers import GroupedIntegers, block_format
from kernels.weights import StoredWeight

SCALE_TYPES = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Requirements of a layer's tensor. shapes: the permitted ones. types: by their names in safetensors headers.
    longest: the most elements of a list of any length, which is permitted, too."""

    types: tuple[str, ...]
    shapes: tuple[Shape, ...]
    required: bool = True
    longest: int = 0

    def permits(self, shape: Shape) -> bool:
        return shape in self.shapes or (len(shape) == 1 and shape[0] <= self.longest)


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """The tensors of a linear layer [out_features, in_features], by their suffix; shapes and types are checked."""

    name: str
    out_features: int
    in_features: int
    tensors: Mapping[str, Array]

    def scales(self, suffix: str) -> Floats:
        """A tensor of scales in float32.

        Raises:
            UnsupportedCheckpoint: a scale is not finite.
        """
        scales: Floats = self.tensors[suffix].astype(FLOAT32)
        if not np.isfinite(scales).all():
            raise self.refuse(suffix, "a scale is not finite")
        return scales

    def refuse(self, suffix: str, why: str) -> UnsupportedCheckpoint:
        """The error of a tensor."""
        return UnsupportedCheckpoint(f"tensor {self.name}.{suffix}: {why}")


class LayerScheme(Protocol):
    """How linear layers are stored."""

    @property
    def description(self) -> str:
        """For operators, as "gptq, 4 bits, groups of 128"."""
        ...

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, TensorSpec]:
        """The tensors of a layer of that shape, by suffix.

        Raises:
            UnsupportedCheckpoint: the shape cannot be stored this way; the message names the key.
        """
        ...

    def block_format(self, in_features: int) -> str | None:
        """The format of `blocks`; None if no block format has exactly the meaning of `floats`."""
        ...

    def floats(self, layer: QuantizedLayer) -> Floats:
        """The weight float32 [out_features, in_features]: the definition of the format.

        Raises:
            UnsupportedCheckpoint: a tensor's values contradict the config; the message names the tensor.
        """
        ...

    def blocks(self, layer: QuantizedLayer) -> StoredWeight:
        """The weight in `block_format`, not rounded. Raises as `floats` does."""
        ...


class WeightFormat(Protocol):
    """A checkpoint's quantisation."""

    def scheme(self, module: str) -> LayerScheme | None:
        """How the module is stored; None if it is not quantised. A module whose weight is stored as plain numbers, with
        no tensor of the scheme, is not quantised, whatever this returns."""
        ...


class IntegerScheme(ABC):
    """A scheme whose meaning is `GroupedIntegers`. Subclasses define `integers`.

    group_size: inputs of a group; None: all. index: the tensor, int32 [in_features], with the group of each input if
    groups are not in order (activation order, `desc_act`).
    """

    def __init__(self, method: str, bits: int, group_size: int | None, index: str | None = None) -> None:
        self.method, self.bits, self.group_size = method, bits, group_size
        self.index = None if group_size is None else index

    @property
    def description(self) -> str:
        groups = "one group" if self.group_size is None else f"groups of {self.group_size}"
        order = "" if self.index is None else ", activation order"
        return f"{self.method}, {self.bits} bits, {groups}{order}"

    @abstractmethod
    def integers(self, layer: QuantizedLayer) -> GroupedIntegers:
        """The layer's integers, scales and zero points, as if groups were in order. Raises as `LayerScheme.floats`
        does."""

    def block_format(self, in_features: int) -> str | None:
        if self.index is not None:
            return None  # each product would have to reorder its input, which no kernel does
        return block_format(self.bits, self.group_size or in_features)

    def floats(self, layer: QuantizedLayer) -> Floats:
        integers = self.integers(layer)
        if self.index is None:
            return integers.floats()
        return integers.floats_of(self._group_of_inputs(layer, self.index))

    def blocks(self, layer: QuantizedLayer) -> StoredWeight:
        format = self.block_format(layer.in_features)
        assert format is not None, f"{layer.name} has no block format"
        return self.integers(layer).blocks(format)

    def _group_of_inputs(self, layer: QuantizedLayer, index: str) -> Array:
        groups = layer.tensors[index]
        if groups.min() < 0 or groups.max() >= self.groups(layer.in_features):
            raise layer.refuse(index, f"a group is not in 0..{self.groups(layer.in_features) - 1}")
        return groups

    def groups(self, in_features: int) -> int:
        """Groups of a layer.

        Raises:
            UnsupportedCheckpoint: the group size does not divide the inputs.
        """
        if self.group_size is None:
            return 1
        return divided(in_features, self.group_size, f"group_size {self.group_size}")


def divided(count: int, unit: int, what: str) -> int:
    """count / unit, without a rest.

    Raises:
        UnsupportedCheckpoint: there is a rest.
    """
    whole, rest = divmod(count, unit)
    if rest or not whole:
        raise UnsupportedCheckpoint(f"{what} does not divide {count}")
    return whole
