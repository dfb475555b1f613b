"""The quantised layers of a folder: found among the tensors of its files, checked, and taken from them."""

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoints.quantization.scheme import LayerScheme, QuantizedLayer, TensorSpec, WeightFormat
from engine.checkpoints.safetensors_file import FLOAT_TYPES, MappedFile, StoredTensor
from engine.models.config import UnsupportedCheckpoint
from engine.models.layout import EMBEDDING, Shape
from kernels.arrays import Array

_WEIGHT, _BIAS = ".weight", ".bias"


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """A quantised layer: how it is stored, and its tensors by suffix."""

    scheme: LayerScheme
    shape: Shape
    tensors: Mapping[str, StoredTensor]

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors.values())


def take_layers(
    format: WeightFormat, expected: Iterable[tuple[str, Shape]], stored: MutableMapping[str, StoredTensor]
) -> dict[str, LayerTensors]:
    """The quantised layers by the name of their weight. Their tensors are removed from `stored`. `expected`: name and
    shape of the model's weights.

    Raises:
        UnsupportedCheckpoint: a tensor is missing, or has another shape or type; the message names it.
    """
    layers: dict[str, LayerTensors] = {}
    # Stops at the first that is missing: a config that claims many layers costs no more than the file has tensors.
    for name, shape in expected:
        if len(shape) != 2 or name == EMBEDDING or not name.endswith(_WEIGHT):
            continue
        module = name.removesuffix(_WEIGHT)
        scheme = format.scheme(module)
        if scheme is None or _is_plain(stored.get(name)):
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
        layers[name] = LayerTensors(scheme, shape, found)
    return layers


class LayerReader:
    """Reads the tensors of a folder's quantised layers; its files stay mapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, MappedFile] = {}

    def read(self, name: str, layer: LayerTensors) -> QuantizedLayer:
        """The layer whose weight has that name. Views of the files: use them before `release`."""
        module = name.removesuffix(_WEIGHT)
        tensors = {suffix: self._array(f"{module}.{suffix}", tensor) for suffix, tensor in layer.tensors.items()}
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
        for weight in layers:
            name = weight.removesuffix(_WEIGHT) + _BIAS
            if name in expected or name not in stored:
                continue
            if self._array(name, stored.pop(name)).any():
                raise UnsupportedCheckpoint(f"tensor {name} is not zero, and the model has no such bias")

    def release(self) -> None:
        """Release the files' resident pages."""
        for file in self._files.values():
            file.release()

    def _array(self, name: str, tensor: StoredTensor) -> Array:
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
    if tensor.shape not in spec.shapes:
        raise UnsupportedCheckpoint(f"tensor {name} has shape {list(tensor.shape)}, not {list(spec.shapes[0])}")
