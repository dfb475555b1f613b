"""Maps the tensors of a family's files to the names, and the order of rows, of `engine.models.layout`."""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.checkpoints.huggingface.families import Family
from engine.checkpoints.huggingface.families.family import Stacked
from engine.checkpoints.quantization.layers import LayerPart, StoredMatrix
from engine.checkpoints.row_order import half_split_order, latent_key_order, latent_query_order
from engine.checkpoints.safetensors_file import FLOAT_TYPES, StoredTensor
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.latent import LatentConfig
from engine.models.layout import EMBEDDING, HEAD, LAYER_EMBEDDING, Shape, layer_tensors
from kernels.arrays import Array, Ints

_WEIGHT, _HEAD = ".weight", HEAD.rpartition(".")[0]
_OF_KV = re.compile(r"self_attn\.[kv]_(proj|norm)\.")
_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,3})\.(.+)")


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor of the layout within a tensor of the file. view: its numbers, from the file's tensor."""

    name: str
    shape: Shape
    view: Callable[[Array], Array]


class TensorNames:
    """The names of one checkpoint's tensors.

    A tensor of the file is one of the layout, under its own name or another, or several of them: one after the other
    along the rows, in another order of rows, or the same one of every expert. Tensors of other parts of a multimodal
    model, and of layers that only draft, are none.
    """

    def __init__(self, family: Family, config: ModelConfig) -> None:
        self._family, self._config = family, config
        self._splits = family.splits(config)
        self._holders: Mapping[str, tuple[str, ...]] = {
            **family.fused,
            **{module: tuple(members) for module, members in self._splits.items()},
        }
        """Modules of a layer with the rows of several of the layout, and these."""

    def is_ignored(self, name: str) -> bool:
        """Whether a tensor of the file has no place in the model."""
        if any(re.match(pattern, name) for pattern in self._family.ignored):
            return True
        renamed = self._renamed(name)
        if renamed == HEAD:
            # Some writers store the tied head a second time; the embedding is the one that counts.
            return self._config.tie_embeddings
        match = _LAYER.fullmatch(renamed)
        if match is not None and not self._has_place_for_kv(int(match[1])) and _OF_KV.match(match[2]):
            return True
        return self._family.draft_layers and match is not None and int(match[1]) >= self._config.num_layers

    def _has_place_for_kv(self, layer: int) -> bool:
        """Whether a layer has keys and values. Published files have their weights also where it has none."""
        return layer >= self._config.num_layers or self._config.has_kv(layer)

    def layout_shapes(self, stored: Mapping[str, Shape]) -> dict[str, Shape]:
        """Shapes by the layout's names, from shapes by the file's.

        Raises:
            UnsupportedCheckpoint: two tensors of the file have the same place, or one that holds several has too few
                rows.
        """
        shapes: dict[str, Shape] = {}
        for name, shape in stored.items():
            for part in self._parts(name, shape):
                if part.name in shapes:
                    raise UnsupportedCheckpoint(f"tensor {name}: {part.name} is in the file twice")
                shapes[part.name] = part.shape
        return shapes

    def layout_tensors(self, name: str, array: Array) -> Iterator[tuple[str, Array]]:
        """The tensors of the layout that a tensor of the file holds. Views of it, unless their rows are reordered.

        Raises:
            UnsupportedCheckpoint: rows that are reordered, or several tensors', are not as many as the model has.
        """
        for part in self._parts(name, array.shape):
            rows = part.view(array)
            order = self._row_order(part.name)
            if order is not None and len(rows) != len(order):
                raise UnsupportedCheckpoint(f"tensor {name} has {len(rows)} rows; the model has {len(order)}")
            yield part.name, rows if order is None else rows[order]

    def parts(self, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """The tensors of quantised layers, and all others, by the layout's names, each as a part of the file's.

        Raises:
            UnsupportedCheckpoint: as in `layout_shapes`.
        """
        whole = self._whole_modules(stored)
        return {
            part.name: replace(
                tensor,
                shape=part.shape,
                bytes=tensor.bytes * math.prod(part.shape) // max(math.prod(tensor.shape), 1),
                within=(name, part.view),
            )
            for name, tensor in stored.items()
            for part in self._parts(name, tensor.shape, whole)
        }

    def matrices(
        self, expected: Mapping[str, Shape], stored: Mapping[str, StoredTensor], parts: Mapping[str, StoredTensor]
    ) -> Iterator[StoredMatrix]:
        """The model's matrices but the embedding, as files have them: one that holds several, and is quantised, is
        whole. `expected`: of the model; `parts`: as from that method."""
        whole, files = self._whole_modules(stored), _file_modules(parts)
        for name, shape in expected.items():
            if len(shape) != 2 or name in (EMBEDDING, LAYER_EMBEDDING) or not name.endswith(_WEIGHT):
                continue
            module = name.removesuffix(_WEIGHT)
            holder, members = self._holder(module)
            if holder not in whole:
                rows = self._row_order(name)
                part = LayerPart(name, slice(None) if rows is None else rows, shape[0])
                yield StoredMatrix(module, files.get(module, module), shape, [part])
            elif module == members[0]:
                yield self._held(holder, files[holder], members, expected)

    def _held(
        self, holder: str, file_module: str, members: Sequence[str], expected: Mapping[str, Shape]
    ) -> StoredMatrix:
        """The matrix of a module that holds the rows of `members`."""
        names = [member + _WEIGHT for member in members]
        counts = [expected[name][0] for name in names]
        prefix = holder[: -len(self._in_layer(holder))]
        splits = self._splits.get(self._in_layer(holder))
        parts, first = [], 0
        for name, count in zip(names, counts, strict=True):
            rows: slice | Ints = slice(first, first + count)
            if splits is not None:
                rows = splits[name.removeprefix(prefix).removesuffix(_WEIGHT)]
            order = self._row_order(name)
            if order is not None:
                rows = np.arange(first, first + count)[order] if isinstance(rows, slice) else rows[order]
            parts.append(LayerPart(name, rows, count))
            first += count
        return StoredMatrix(holder, file_module, (first, expected[names[0]][1]), parts)

    def _holder(self, module: str) -> tuple[str, tuple[str, ...]]:
        """The module that files may have in place of this one and of others, and all of these; else itself."""
        inner = self._in_layer(module)
        prefix = module[: -len(inner)]
        for holder, members in self._holders.items():
            if prefix and inner in members:
                return prefix + holder, tuple(prefix + member for member in members)
        return module, (module,)

    def _in_layer(self, module: str) -> str:
        """The name within its layer; all of it for a module of no layer."""
        match = _LAYER.fullmatch(module)
        return module if match is None else match[2]

    def _whole_modules(self, stored: Mapping[str, StoredTensor]) -> frozenset[str]:
        """The modules that hold several of the layout and are quantised: only their format can take them apart."""
        found = set()
        for name in stored:
            module, kind = _divided(name)
            match = _LAYER.fullmatch(self._renamed(module))
            if match is None or match[2] not in self._holders or int(match[1]) >= self._config.num_layers:
                continue
            weight = stored.get(module + _WEIGHT)
            if kind != "bias" and (weight is None or weight.type not in FLOAT_TYPES):
                found.add(match[0])
        return frozenset(found)

    def _renamed(self, name: str) -> str:
        """The name without the prefix of a multimodal model."""
        for prefix, ours in self._family.prefixes.items():
            if name.startswith(prefix):
                return ours + name.removeprefix(prefix)
        return name

    def _parts(self, name: str, shape: Shape, whole: Collection[str] = ()) -> Iterator[_Part]:
        """The tensors of the layout that a tensor of the file holds. `whole`: modules that are not taken apart, but for
        their biases."""
        renamed = self._renamed(name)
        match = _LAYER.fullmatch(renamed)
        if _divided(renamed)[0] in whole and not renamed.endswith(".bias"):
            yield _Part(renamed, shape, lambda array: array)
            return
        if match is None or int(match[1]) >= self._config.num_layers:
            yield _Part(renamed, shape, lambda array: array)
            return
        layer, tensor = int(match[1]), match[2]
        prefix = f"model.layers.{layer}"
        stacked = self._family.stacked.get(tensor)
        if stacked is not None:
            yield from self._stacked(name, layer, stacked, shape)
            return
        module, kind = _divided(tensor)
        if module in self._splits:
            yield from _split(name, f"{prefix}.{{}}.{kind}", self._splits[module], shape)
            return
        modules = self._family.fused.get(module)
        if modules is None:
            yield _Part(f"{prefix}.{self._tensor(tensor, layer)}", shape, lambda array: array)
            return
        sizes = {name: shape[0] for name, shape in layer_tensors(self._config, layer)}
        rows, first = shape[0] if shape else 0, 0
        for part in modules:
            last = rows if part == modules[-1] else first + sizes.get(f"{part}.{kind}", 0)
            if last > rows or (last == rows and part != modules[-1]):
                raise UnsupportedCheckpoint(f"tensor {name} has shape {list(shape)}: too few rows")
            yield _Part(f"{prefix}.{part}.{kind}", (last - first, *shape[1:]), _rows(first, last))
            first = last

    def _stacked(self, name: str, layer: int, stacked: Stacked, shape: Shape) -> Iterator[_Part]:
        """The tensors of each expert."""
        config, count = self._config, len(stacked.tensors)
        if config.experts is None:
            raise UnsupportedCheckpoint(f"tensor {name} is not understood")
        expected = dict(layer_tensors(config, layer)).get(f"mlp.experts.0.{stacked.tensors[0]}")
        if expected is None:  # of a quantised layer, whose format checks the shape
            expected = (shape[1] // count, *shape[2:]) if len(shape) > 1 else ()
        whole = (config.experts.count, *(size * (1 if index else count) for index, size in enumerate(expected)))
        turned = stacked.transposed or (stacked.transposed is None and shape != whole)
        if not expected or shape != (whole[:1] + whole[:0:-1] if turned else whole):
            raise UnsupportedCheckpoint(
                f"tensor {name} has shape {list(shape)}: not that of {count} x {list(expected)}"
            )
        for expert in range(config.experts.count):
            for place, tensor in enumerate(stacked.tensors):
                view = _of_expert(expert, turned, stacked.rows(place, expected[0]))
                yield _Part(f"model.layers.{layer}.mlp.experts.{expert}.{tensor}", expected, view)

    def _tensor(self, tensor: str, layer: int) -> str:
        """The layout's name of a layer's tensor: that of its module, and the kind."""
        module, kind = _divided(tensor)
        names = self._family.names
        if self._config.is_sparse(layer):
            names = {**self._family.sparse_names, **names}
        for pattern, ours in names.items():
            if (match := re.fullmatch(pattern, module)) is not None:
                return f"{match.expand(ours)}.{kind}"
        return tensor

    def _row_order(self, name: str) -> Ints | None:
        """Rows of a query or key projection in the order of half-split rope; None if they are in it."""
        if not self._family.interleaved_rope or ".self_attn." not in name:
            return None
        if self._config.latent is not None:
            return _latent_row_order(name, self._config, self._config.latent)
        heads = self._config.num_heads if ".q_proj." in name else self._config.num_kv_heads
        if ".q_proj." not in name and ".k_proj." not in name:
            return None
        dim = self._config.head_dim
        return half_split_order(heads, dim, self._config.rope.rotary_dim or dim)


def _divided(name: str) -> tuple[str, str]:
    """A tensor's module and its name within that: `weight`, `qweight`, or as bitsandbytes has it `weight.absmax`."""
    module, weight, kind = name.partition(_WEIGHT + ".")
    if weight:
        return module, weight[1:] + kind
    module, _, kind = name.rpartition(".")
    return module, kind


def _file_modules(parts: Mapping[str, StoredTensor]) -> dict[str, str]:
    """The modules' names in the files, by ours: config.json names them so. Those of stacked experts have none."""
    files: dict[str, str] = {}
    for name, tensor in parts.items():
        module, kind = _divided(name)
        stored = name if tensor.within is None else tensor.within[0]
        if stored.endswith(f".{kind}") and module != _HEAD:
            files.setdefault(module, stored.removesuffix(f".{kind}"))
    return files


def _latent_row_order(name: str, config: ModelConfig, latent: LatentConfig) -> Ints | None:
    if ".q_proj." in name or ".q_b_proj." in name:
        return latent_query_order(config, latent)
    return latent_key_order(latent) if ".kv_a_proj_with_mqa." in name else None


def _split(name: str, pattern: str, rows_of: Mapping[str, Ints], shape: Shape) -> Iterator[_Part]:
    """The tensors of modules whose rows lie in any order; all rows belong to one of them."""
    count = sum(map(len, rows_of.values()))
    if not shape or shape[0] != count:
        raise UnsupportedCheckpoint(f"tensor {name} has shape {list(shape)}: not {count} rows")
    for module, rows in rows_of.items():
        yield _Part(pattern.format(module), (len(rows), *shape[1:]), _rows_at(rows))


def _rows_at(rows: Ints) -> Callable[[Array], Array]:
    return lambda array: array[rows]


def _rows(first: int, last: int) -> Callable[[Array], Array]:
    return lambda array: array[first:last]


def _of_expert(expert: int, turned: bool, rows: slice) -> Callable[[Array], Array]:
    return lambda array: (array[expert].T if turned else array[expert])[rows]
