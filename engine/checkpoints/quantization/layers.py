"""The quantised layers of a folder: found among the tensors of its files, checked, and taken from them."""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from engine.checkpoints.quantization.scheme import LayerScheme, QuantizedLayer, TensorSpec, WeightFormat
from engine.checkpoints.safetensors_file import FLOAT_TYPES, MappedFile, StoredTensor
from engine.models.config import UnsupportedCheckpoint
from engine.models.layout import Shape
from kernels.arrays import Array, Ints

_WEIGHT, _BIAS = ".weight", ".bias"


@dataclass(frozen=True, slots=True)
class LayerPart:
    """A matrix of the model that is some rows of a stored one. rows: `count` of them, in the model's order."""

    name: str
    rows: slice | Ints
    count: int


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A module's matrix as files have it, and the matrices of the model that it is. file_module: the module's name in
    the files, which their config means."""

    module: str
    file_module: str
    shape: Shape
    parts: Sequence[LayerPart]


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """A quantised layer: how it is stored, the matrices that it is, and its tensors by suffix."""

    scheme: LayerScheme
    shape: Shape
    parts: Sequence[LayerPart]
    tensors: Mapping[str, StoredTensor]

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors.values())

    def bytes_of(self, part: LayerPart) -> int:
        """The part's share of the bytes; those of all parts add up."""
        before = sum(each.count for each in takewhile(lambda each: each is not part, self.parts))
        rows = self.shape[0]
        return (before + part.count) * self.bytes // rows - before * self.bytes // rows


def take_layers(
    format: WeightFormat, matrices: Iterable[StoredMatrix], stored: MutableMapping[str, StoredTensor]
) -> dict[str, LayerTensors]:
    """The quantised layers by their module. Their tensors are removed from `stored`.

    Raises:
        UnsupportedCheckpoint: a tensor is missing, or has another shape or type; the message names it.
    """
    layers: dict[str, LayerTensors] = {}
    # Stops at the first that is missing: a config that claims many layers costs no more than the file has tensors.
    for matrix in matrices:
        module, shape = matrix.module, matrix.shape
        scheme = format.scheme(matrix.file_module)
        if scheme is None or _is_plain(stored.get(module + _WEIGHT)):
            continue
        found: dict[str, StoredTensor] = {}
        for suffix, spec in _specs(scheme, module, shape).items():
            tensor = stored.pop(f"{module}.{suffix}", None)
            if tensor is None:
                if spec.required:
                    raise UnsupportedCheckpoint(f"tensor {module}.{suffix} is missing ({scheme.description})")
                continue
            _check(f"{module}.{suffix}", tensor, spec)
            found[suffix] = tensor
        layers[module] = LayerTensors(scheme, shape, matrix.parts, found)
    return layers


class LayerReader:
    """Reads the tensors of a folder's quantised layers; its files stay mapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, MappedFile] = {}

    def read(self, module: str, layer: LayerTensors) -> QuantizedLayer:
        """The layer of a module. Views of the files: use them before `release`."""
        tensors = {suffix: self.tensor(f"{module}.{suffix}", tensor) for suffix, tensor in layer.tensors.items()}
        out_features, in_features = layer.shape
        return QuantizedLayer(module, out_features, in_features, tensors)

    def take_zero_biases(
        self,
        layers: Mapping[str, LayerTensors],
        expected: Mapping[str, Shape],
        stored: MutableMapping[str, StoredTensor],
    ) -> None:
        """Remove biases of quantised layers that the model has none of: AutoGPTQ writes them, as zeros.

        Raises:
            UnsupportedCheckpoint: one is not zero.
        """
        for module, layer in layers.items():
            name = module + _BIAS
            wanted = any(part.name.removesuffix(_WEIGHT) + _BIAS in expected for part in layer.parts)
            if wanted or name not in stored:
                continue
            if self.tensor(name, stored.pop(name)).any():
                raise UnsupportedCheckpoint(f"tensor {name} is not zero, and the model has no such bias")

    def release(self) -> None:
        """Release the files' resident pages."""
        for file in self._files.values():
            file.release()

    def tensor(self, name: str, tensor: StoredTensor) -> Array:
        """A tensor of the files. A view, as in `read`."""
        if tensor.file not in self._files:
            self._files[tensor.file] = MappedFile(self._folder / tensor.file)
        file = self._files[tensor.file]
        if tensor.within is None:
            return file.tensor(name)
        stored, part = tensor.within
        return part(file.tensor(stored))


def _is_plain(weight: StoredTensor | None) -> bool:
    return weight is not None and weight.type in FLOAT_TYPES


def _specs(scheme: LayerScheme, module: str, shape: Shape) -> Mapping[str, TensorSpec]:
    try:
        return scheme.tensors(*shape)
    except UnsupportedCheckpoint as error:
        raise UnsupportedCheckpoint(f"tensor {module}{_WEIGHT} {list(shape)}: {error}") from error


def _check(name: str, tensor: StoredTensor, spec: TensorSpec) -> None:
    if tensor.type not in spec.types:
        raise UnsupportedCheckpoint(f"tensor {name} has type {tensor.type}, not one of {', '.join(spec.types)}")
    if not spec.permits(tensor.shape):
        wanted = list(spec.shapes[0]) if spec.shapes else f"a list of at most {spec.longest}"
        raise UnsupportedCheckpoint(f"tensor {name} has shape {list(tensor.shape)}, not {wanted}")
