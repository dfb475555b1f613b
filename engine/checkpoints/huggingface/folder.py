"""A Hugging Face folder: config.json, a tokenizer, safetensors (one file or indexed shards).

Pickled weights are never opened.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.checkpoints.huggingface.config import config_from_json
from engine.checkpoints.huggingface.families import FAMILIES
from engine.checkpoints.huggingface.tensor_names import TensorNames
from engine.checkpoints.json_keys import read_json_object, shown
from engine.checkpoints.quantization.kv_scales import take_kv_scales
from engine.checkpoints.quantization.layers import LayerReader, LayerTensors, take_layers
from engine.checkpoints.quantization.registry import read_format
from engine.checkpoints.quantization.scheme import WeightFormat
from engine.checkpoints.safetensors_file import (
    FLOAT_TYPES,
    StoredTensor,
    mapped_tensors,
    open_tensors,
    stored_tensors,
)
from engine.checkpoints.text import text_processor_from_folder
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.layout import check_tensors, expected_tensors, is_wide
from engine.models.sources import QuantizedMatrix
from engine.sampling_defaults import SamplingDefaults
from engine.text.processor import TextProcessor
from kernels.arrays import FLOAT32, Array, Dtype
from kernels.weights import KVScales, StoredWeight

_MAX_CONFIG_BYTES = 4 << 20
_MAX_INDEX_BYTES = 64 << 20
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_GENERATION_CONFIG = "generation_config.json"
_SAMPLING_KEYS = {name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}


def read_configs(folder: Path) -> tuple[ModelConfig, WeightFormat | None, dict[str, Any] | None]:
    """The model, the format of its quantised weights if it states one, and the content of generation_config.json. The
    folder may still lack its weights.

    Raises:
        UnsupportedCheckpoint: the message names the file and the key that cannot be served.
    """
    file = folder / _GENERATION_CONFIG
    generation = read_json_object(file, _MAX_CONFIG_BYTES) if file.is_file() else None
    config = read_json_object(folder / "config.json", _MAX_CONFIG_BYTES)
    return config_from_json(config, generation), read_format(config), generation


class HFCheckpoint:
    """A `Checkpoint` of a validated folder. Only headers have been read, and scales of KV.

    Raises:
        UnsupportedCheckpoint: the message names the file and the key or tensor that cannot be served.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config, format, generation = read_configs(folder)
        self._sampling_defaults = SamplingDefaults.of_checkpoint(generation or {}, _SAMPLING_KEYS, _GENERATION_CONFIG)
        family = FAMILIES[self._config.family]
        self._names = TensorNames(family, self._config)
        stored = _read_headers(folder, _weight_files(folder))
        stored = {name: tensor for name, tensor in stored.items() if not self._names.is_ignored(name)}
        self._layers: Mapping[str, LayerTensors] = {}
        self._kv_scales: Mapping[int, KVScales] = {}
        self._reader = LayerReader(folder)
        if format is not None:
            expected = dict(expected_tensors(self._config))
            parts = self._names.parts(stored)
            self._kv_scales = take_kv_scales(self._config, parts, self._reader)
            self._layers = take_layers(format, self._names.matrices(expected, stored, parts), parts)
            self._reader.take_zero_biases(self._layers, expected, parts)
            plain = {tensor.within[0] for tensor in parts.values() if tensor.within is not None}
            stored = {name: tensor for name, tensor in stored.items() if name in plain}
        _check_types(stored)
        shapes = self._names.layout_shapes({name: tensor.shape for name, tensor in stored.items()})
        for layer in self._layers.values():
            shapes |= {part.name: (part.count, layer.shape[1]) for part in layer.parts}
        check_tensors(self._config, shapes)
        self._stored = stored

    @property
    def path(self) -> Path:
        return self._folder

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """The values of generation_config.json, whether or not it has `do_sample`, as vLLM reads it."""
        return self._sampling_defaults

    @property
    def weight_bytes(self) -> int:
        plain = sum(tensor.bytes for tensor in self._stored.values())
        return plain + sum(layer.bytes for layer in self._layers.values())

    @property
    def kv_scales(self) -> Mapping[int, KVScales]:
        """See `engine.models.sources.KVScaleSource`."""
        return self._kv_scales

    @property
    def quantized(self) -> Mapping[str, QuantizedMatrix]:
        """See `engine.models.sources.BlockSource`."""
        return {
            part.name: QuantizedMatrix(
                layer.scheme.description, layer.scheme.block_format(layer.shape[1]), layer.bytes_of(part)
            )
            for layer in self._layers.values()
            for part in layer.parts
        }

    def stored(self, names: Collection[str]) -> Iterator[tuple[str, StoredWeight]]:
        """The named quantised matrices in blocks."""
        for module, layer in self._layers.items():
            parts = [part for part in layer.parts if part.name in names]
            if parts:
                whole = layer.scheme.blocks(self._reader.read(module, layer))
                for part in parts:
                    yield part.name, replace(whole, rows=whole.rows[part.rows], out_features=part.count)
                self._reader.release()

    def tensors(self, dtype: Dtype, without: Collection[str] = frozenset()) -> Iterator[tuple[str, Array]]:
        """Every weight in `dtype` except for `without`, which are quantised; memory-mapped if the file has that
        dtype."""
        yield from self._plain_tensors(dtype)
        for module, layer in self._layers.items():
            parts = [part for part in layer.parts if part.name not in without]
            if parts:
                whole = layer.scheme.floats(self._reader.read(module, layer)).astype(dtype, copy=False)
                for part in parts:
                    yield part.name, whole[part.rows]
                self._reader.release()

    def text_processor(self) -> TextProcessor:
        return text_processor_from_folder(self._folder)

    def _plain_tensors(self, dtype: Dtype) -> Iterator[tuple[str, Array]]:
        by_file: dict[str, list[str]] = {}
        for name, tensor in self._stored.items():
            by_file.setdefault(tensor.file, []).append(name)
        for file, names in by_file.items():
            with open_tensors(self._folder / file):
                for stored, array in mapped_tensors(self._folder / file, names):
                    for name, part in self._names.layout_tensors(stored, array):
                        yield name, part.astype(FLOAT32 if is_wide(name) else dtype, copy=False)


def _check_types(stored: Mapping[str, StoredTensor]) -> None:
    """Raises:
    UnsupportedCheckpoint: a tensor that belongs to no quantised layer is not of a float type."""
    for name, tensor in stored.items():
        if tensor.type not in FLOAT_TYPES:
            raise UnsupportedCheckpoint(f"tensor {name} has type {tensor.type}, not one of {', '.join(FLOAT_TYPES)}")


def _weight_files(folder: Path) -> dict[str, str] | list[str]:
    """The file of each tensor: by the index, or the only file."""
    if (folder / _INDEX).is_file():
        return _read_index(folder / _INDEX)
    if (folder / _SINGLE).is_file():
        return [_SINGLE]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise UnsupportedCheckpoint(
            f"{folder.name}: only pickled weights (.bin, .pt), which could run code; convert to safetensors"
        )
    raise UnsupportedCheckpoint(f"{folder.name}: neither {_SINGLE} nor {_INDEX}")


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_json_object(path, _MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UnsupportedCheckpoint(f"{path.name}: weight_map: is missing or empty")
    for name, file in weight_map.items():
        # A plain name in this folder: an index must not reach any other file of the machine.
        plain = isinstance(file, str) and file.isprintable() and not set(file) & {"/", "\\"}
        if not (plain and file.endswith(".safetensors")):
            raise UnsupportedCheckpoint(f"{path.name}: weight_map: {shown(name)}: {file!r:.200} is not a file name")
    return weight_map


def _read_headers(folder: Path, files: dict[str, str] | list[str]) -> dict[str, StoredTensor]:
    stored: dict[str, StoredTensor] = {}
    for file in sorted(set(files.values() if isinstance(files, dict) else files)):
        for name, tensor in stored_tensors(folder / file):
            if name.endswith("rotary_emb.inv_freq"):
                continue  # computed from the config; old checkpoints stored it
            if name in stored:
                raise UnsupportedCheckpoint(f"tensor {name} is in both {stored[name].file} and {file}")
            stored[name] = tensor
    if isinstance(files, dict):
        for name, file in files.items():
            if name in stored and stored[name].file != file:
                raise UnsupportedCheckpoint(f"tensor {name} is in {stored[name].file}; the index says {file}")
    return stored
