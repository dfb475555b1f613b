"""Maps the tensors of a family's files to the names, and the order of rows, of `engine.models.layout`."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from engine.checkpoints.huggingface.families import Family
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.layout import Shape, layer_tensors
from kernels.arrays import Array, Ints

_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,3})\.(.+)\.(weight|bias)")


class TensorNames:
    """The names of one checkpoint's tensors.

    A tensor of the file is one of the layout, under its own name or another, or several of them, one after the other
    along the rows.
    """

    def __init__(self, family: Family, config: ModelConfig) -> None:
        self._family, self._config = family, config

    def layout_shapes(self, stored: Mapping[str, Shape]) -> dict[str, Shape]:
        """Shapes by the layout's names, from shapes by the file's.

        Raises:
            UnsupportedCheckpoint: two tensors of the file have the same place, or a fused one has too few rows.
        """
        shapes: dict[str, Shape] = {}
        for name, shape in stored.items():
            for part, first, last in self._parts(name, shape):
                if part in shapes:
                    raise UnsupportedCheckpoint(f"tensor {name}: {part} is in the file twice")
                shapes[part] = (last - first, *shape[1:]) if shape else shape
        return shapes

    def layout_tensors(self, name: str, array: Array) -> Iterator[tuple[str, Array]]:
        """The tensors of the layout that a tensor of the file holds. Views of it, unless their rows are reordered."""
        for part, first, last in self._parts(name, array.shape):
            rows = array[first:last] if array.shape else array
            order = self._row_order(part)
            yield part, rows if order is None else rows[order]

    def _parts(self, name: str, shape: Shape) -> Iterator[tuple[str, int, int]]:
        """(name, first row, last row) of each tensor of the layout."""
        rows = shape[0] if shape else 0
        match = _LAYER.fullmatch(name)
        if match is None or int(match[1]) >= self._config.num_layers:
            yield name, 0, rows
            return
        layer, module, kind = int(match[1]), match[2], match[3]
        modules = self._family.fused.get(module)
        if modules is None:
            yield f"model.layers.{layer}.{self._module(module)}.{kind}", 0, rows
            return
        sizes = {name: shape[0] for name, shape in layer_tensors(self._config, layer)}
        first = 0
        for part in modules[:-1]:
            last = first + sizes.get(f"{part}.{kind}", 0)
            if last >= rows:
                raise UnsupportedCheckpoint(f"tensor {name} has shape {list(shape)}: too few rows")
            yield f"model.layers.{layer}.{part}.{kind}", first, last
            first = last
        yield f"model.layers.{layer}.{modules[-1]}.{kind}", first, rows

    def _module(self, module: str) -> str:
        for pattern, ours in self._family.names.items():
            if (match := re.fullmatch(pattern, module)) is not None:
                return match.expand(ours)
        return module

    def _row_order(self, name: str) -> Ints | None:
        """Rows of a query or key projection in the order of half-split rope; None if they are in it."""
        if not self._family.interleaved_rope or ".self_attn." not in name:
            return None
        heads = self._config.num_heads if ".q_proj." in name else self._config.num_kv_heads
        if ".q_proj." not in name and ".k_proj." not in name:
            return None
        dim = self._config.head_dim
        rotated = self._config.rope.rotary_dim or dim
        of_head = np.concatenate((np.arange(0, rotated, 2), np.arange(1, rotated, 2), np.arange(rotated, dim)))
        order: Ints = (np.arange(heads)[:, None] * dim + of_head).ravel()
        return order
