"""Reads the adapter of a PEFT folder: `adapter_config.json` and `adapter_model.safetensors`.

An adapter is two matrices for each module that it changes: `lora_A` [rank, inputs] and `lora_B` [outputs, rank].
Modules have the names of the base model in Hugging Face's library; those that our layout fuses, splits or orders
otherwise are treated as the base's own weights are, so that an adapter fits a base of any file format.
"""

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np

from engine.adapters.errors import UnsupportedAdapter
from engine.adapters.peft_config import CONFIG, PeftConfig, read_peft_config
from engine.adapters.source import AdapterSource
from engine.checkpoints.huggingface.families import FAMILIES
from engine.checkpoints.huggingface.tensor_names import TensorNames
from engine.checkpoints.json_keys import shown
from engine.checkpoints.safetensors_file import FLOAT_TYPES, StoredTensor, mapped_tensors, stored_tensors
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.layout import fused_modules, layer_tensors
from kernels.adapters import ADAPTED_PRODUCTS, AdaptedProduct, AdapterWeights, LayerAdapter, LowRankPart
from kernels.arrays import FLOAT32, Array

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
assert len(_DOWN) == len(_UP)
_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,3})\.(.+)\.weight")
_PRODUCTS: Mapping[str, AdaptedProduct] = {
    "qkv": "qkv",
    "output": "output",
    "mlp.gate_up": "gate_up",
    "mlp.down": "down",
}
"""The products that adapters may change, by their names in `fused_modules`."""


def digest_of(folder: Path) -> str:
    """sha256 in hexadecimal of the digests of a folder's two files.

    Raises:
        UnsupportedAdapter: a file cannot be read.
    """
    whole = sha256()
    for name in (CONFIG, WEIGHTS):
        try:
            with (folder / name).open("rb") as file:
                part = sha256()
                while data := file.read(1 << 20):
                    part.update(data)
        except OSError as error:
            raise UnsupportedAdapter(f"{name}: cannot be read ({error.strerror})") from error
        whole.update(part.digest())
    return whole.hexdigest()


def read_adapter(
    folder: Path, config: ModelConfig, *, max_rank: int, max_bytes: int
) -> tuple[AdapterWeights, PeftConfig, tuple[str, ...]]:
    """The weights of a PEFT folder for a base model, its config, and the names of the modules that it changes.

    Raises:
        UnsupportedAdapter: the adapter does not fit the model, or cannot be served; the message names the key or the
            tensor.
    """
    try:
        settings = read_peft_config(folder, max_rank)
        _check_files(folder, max_bytes)
        return _read(folder, config, settings)
    except UnsupportedCheckpoint as error:
        raise UnsupportedAdapter(str(error)) from error


def read_unchanged(source: AdapterSource, config: ModelConfig) -> AdapterWeights:
    """The weights of an adapter that was checked when it was registered, from the same files.

    Raises:
        UnsupportedAdapter: the files have changed since, or cannot be read.
    """
    if digest_of(source.folder) != source.digest:
        raise UnsupportedAdapter("its files have changed")
    # Limits are those of its registration.
    weights, _, _ = read_adapter(source.folder, config, max_rank=1 << 16, max_bytes=1 << 62)
    return weights


def _check_files(folder: Path, max_bytes: int) -> None:
    path = folder / WEIGHTS
    if not path.is_file():
        pickled = " (pickled weights are never opened; save the adapter as safetensors)"
        raise UnsupportedAdapter(f"{WEIGHTS}: is missing{pickled if any(folder.glob('*.bin')) else ''}")
    if (size := path.stat().st_size) > max_bytes:
        raise UnsupportedAdapter(f"{WEIGHTS}: {size} bytes, more than {max_bytes}")


def _read(
    folder: Path, config: ModelConfig, settings: PeftConfig
) -> tuple[AdapterWeights, PeftConfig, tuple[str, ...]]:
    path = folder / WEIGHTS
    modules = _modules(dict(stored_tensors(path)), settings)
    names = TensorNames(FAMILIES[config.family], config)
    layers: list[dict[AdaptedProduct, list[LowRankPart]]] = [{} for _ in range(config.num_layers)]
    places = [_places(config, index) for index in range(config.num_layers)]
    tensors = mapped_tensors(path, [f"{_PREFIX}{module}{kind}" for module in modules for kind in (_DOWN, _UP)])
    changed = set()
    for module in modules:
        down_name, down = _finite(*next(tensors))
        up_name, up = _finite(*next(tensors), settings.scaling_of(module))
        for name, rows in _layout_rows(names, module, up):
            match = _LAYER.fullmatch(name)
            layer = config.num_layers if match is None else int(match[1])
            # A place is taken once: two names of a file can be the same module.
            place = None if match is None or layer >= config.num_layers else places[layer].pop(match[2], None)
            if match is None or place is None:
                raise UnsupportedAdapter(f"tensor {shown(down_name)}: adapters of this module are not supported")
            product, first, outputs, inputs = place
            if down.shape[1] != inputs:
                raise UnsupportedAdapter(f"tensor {down_name} has {down.shape[1]} inputs; the base model has {inputs}")
            if len(rows) != outputs:
                raise UnsupportedAdapter(f"tensor {up_name} has {len(rows)} outputs; the base model has {outputs}")
            part = LowRankPart(down, np.ascontiguousarray(rows), first)
            layers[layer].setdefault(product, []).append(part)
            changed.add(match[2].rpartition(".")[2])
    weights = AdapterWeights([_layer(parts) for parts in layers])
    return weights, settings, tuple(sorted(changed))


def _modules(stored: Mapping[str, StoredTensor], settings: PeftConfig) -> list[str]:
    """The modules that the file changes. Each has both matrices, of one rank, which is that of the config."""
    modules = {name[len(_PREFIX) : -len(_DOWN)] for name in stored if name.endswith(_DOWN)}
    for name, tensor in stored.items():
        if not (name.startswith(_PREFIX) and name.endswith((_DOWN, _UP))):
            raise UnsupportedAdapter(f"tensor {shown(name)}: not the lora_A or lora_B of a module")
        if name[len(_PREFIX) : -len(_DOWN)] not in modules:
            raise UnsupportedAdapter(f"tensor {shown(name)}: its lora_A is missing")
        if tensor.type not in FLOAT_TYPES:
            types = ", ".join(FLOAT_TYPES)
            raise UnsupportedAdapter(f"tensor {shown(name)} has type {tensor.type}, not one of {types}")
        if len(tensor.shape) != 2 or 0 in tensor.shape:
            raise UnsupportedAdapter(f"tensor {shown(name)} has shape {tensor.shape!s:.80}: not a matrix")
    for module in modules:
        rank = settings.rank_of(module)
        for kind, axis in ((_DOWN, 0), (_UP, 1)):
            name = f"{_PREFIX}{module}{kind}"
            if name not in stored:
                raise UnsupportedAdapter(f"tensor {shown(name)} is missing")
            if (found := stored[name].shape[axis]) != rank:
                raise UnsupportedAdapter(f"tensor {shown(name)} has rank {found}; {CONFIG} says {rank}")
    if not modules:
        raise UnsupportedAdapter(f"{WEIGHTS}: has no tensors")
    return sorted(modules)


def _layout_rows(names: TensorNames, module: str, up: Array) -> Iterator[tuple[str, Array]]:
    """The rows of `lora_B` by the layout's names of the weights whose outputs they are."""
    if names.is_ignored(f"{module}.weight"):
        raise UnsupportedAdapter(f"tensor {_PREFIX}{shown(module)}{_UP}: the base model does not use this module")
    yield from names.layout_tensors(f"{module}.weight", up)


def _places(config: ModelConfig, index: int) -> dict[str, tuple[AdaptedProduct, int, int, int]]:
    """By name of a module in a layer: its product, its first output there, and its outputs and inputs."""
    if config.is_linear(index):
        return {}
    shapes = dict(layer_tensors(config, index))
    places = {}
    for name, modules in fused_modules(config, index).items():
        product = _PRODUCTS.get(name)
        if product is None or (config.latent is not None and product == "qkv"):
            continue
        first = 0
        for module in modules:
            outputs, inputs = shapes[f"{module}.weight"]
            places[module] = (product, first, outputs, inputs)
            first += outputs
    return places


def _layer(parts: Mapping[AdaptedProduct, list[LowRankPart]]) -> LayerAdapter:
    in_order = {name: tuple(sorted(parts.get(name, ()), key=lambda part: part.first)) for name in ADAPTED_PRODUCTS}
    return LayerAdapter(**in_order)


def _finite(name: str, stored: Array, scaling: float = 1.0) -> tuple[str, Array]:
    """The numbers in float32, times `scaling`."""
    with np.errstate(all="ignore"):
        numbers = stored.astype(FLOAT32)
        if scaling != 1:
            numbers *= np.float32(scaling)
    if not np.isfinite(numbers).all():
        raise UnsupportedAdapter(f"tensor {shown(name)} has numbers that are not finite")
    return name, numbers
