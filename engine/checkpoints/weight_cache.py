"""A cache of expanded weights: safetensors files in a folder, memory-mapped on later starts.

A file's name contains a hash of all that it depends on (the source's path, size, time and inode, the dtype, the version
of this format), so a changed source misses. Files appear atomically (written to a temporary name, synced, renamed); an
incomplete one is written again. The cache never fails a load: without a writable folder the weights are expanded each
time.
"""

import hashlib
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open

from engine.checkpoints.gguf.file import GGUFCheckpoint
from engine.checkpoints.safetensors_file import DTYPES, mapped_tensors
from engine.models.config import ModelConfig
from engine.models.layout import Shape, expected_tensors
from engine.models.sources import QuantizedMatrix
from engine.sampling_defaults import SamplingDefaults
from engine.text.processor import TextProcessor
from kernels.arrays import Array, Dtype
from kernels.weights import StoredWeight

FORMAT_VERSION = 1
"""Increased when the same source would be expanded to other values."""

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LEFTOVER_AGE_S = 3600

_log = logging.getLogger(__name__)


class CachedCheckpoint:
    """A `Checkpoint` of a GGUF file with its expanded weights cached in `folder`."""

    def __init__(self, source: GGUFCheckpoint, folder: Path) -> None:
        self._source = source
        self._folder = folder

    @property
    def path(self) -> Path:
        return self._source.path

    @property
    def config(self) -> ModelConfig:
        return self._source.config

    @property
    def weight_bytes(self) -> int:
        return self._source.weight_bytes

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        return self._source.sampling_defaults

    @property
    def quantized(self) -> Mapping[str, QuantizedMatrix]:
        return self._source.quantized

    def stored(self, names: Collection[str]) -> Iterator[tuple[str, StoredWeight]]:
        return self._source.stored(names)

    def tensors(self, dtype: Dtype, without: Collection[str] = frozenset()) -> Iterator[tuple[str, Array]]:
        """Every weight in `dtype` except for `without`: memory-mapped, or expanded and written to the cache on the way.
        Nothing is cached if no quantised weight remains."""
        if without and not self.quantized.keys() - set(without):
            yield from self._source.tensors(dtype, without)
            return
        file = self.cache_file(dtype, without)
        shapes = {name: shape for name, shape in expected_tensors(self.config) if name not in without}
        if _is_whole(file, shapes, dtype):
            yield from mapped_tensors(file, shapes)
            return
        writer = _Writer(file, shapes, dtype)
        try:
            for name, tensor in self._source.tensors(dtype, without):
                writer.write(name, tensor)
                yield name, tensor
            if self._source.is_unchanged() and writer.publish():
                with suppress(OSError):  # another process was faster
                    _remove_outdated(file)
        finally:
            writer.close()

    def text_processor(self) -> TextProcessor:
        return self._source.text_processor()

    def cache_file(self, dtype: Dtype, without: Collection[str] = frozenset()) -> Path:
        """Path of the cache file of the weights expanded to `dtype`, whether it exists or not."""
        path = self._source.path.resolve()
        files = [(stat.st_size, stat.st_mtime_ns, stat.st_ino) for stat in self._source.stats]
        state: tuple[object, ...] = (FORMAT_VERSION, *files[0], *files[1:])
        if without:
            state = (*state, *sorted(without))
        source, version = _digest(str(path)), _digest(repr(state))
        return self._folder / f"{path.stem}.{source}.{_DTYPE_NAMES[dtype]}.{version}.safetensors"


class _Writer:
    """Writes a safetensors file tensor by tensor, so that the model is never in memory as a whole.

    Layout: header length u64 | JSON of name to dtype, shape and data offsets | data without gaps. The first file system
    error is logged, stops the writing and removes the file.
    """

    def __init__(self, target: Path, shapes: Mapping[str, Shape], dtype: Dtype) -> None:
        self._target = self._aside = target
        self._offsets: dict[str, int] = {}
        self._file: BinaryIO | None = None
        header: dict[str, Any] = {}
        end = 0
        for name, shape in shapes.items():
            self._offsets[name] = end
            end += math.prod(shape) * dtype.itemsize
            header[name] = {
                "dtype": _DTYPE_NAMES[dtype],
                "shape": shape,
                "data_offsets": [self._offsets[name], end],
            }
        text = json.dumps(header).encode()
        # The format allows spaces behind the JSON: the data starts aligned.
        text += b" " * (-(8 + len(text)) % 64)
        self._data_start = 8 + len(text)
        self._open(text)

    def write(self, name: str, tensor: Array) -> None:
        if self._file is None:
            return
        try:
            self._file.seek(self._data_start + self._offsets[name])
            self._file.write(np.ascontiguousarray(tensor).view(np.uint8).data)
        except OSError as error:
            self._give_up(error)

    def publish(self) -> bool:
        """Rename the file to its final name once its bytes are synced. False if it could not be written."""
        if self._file is None:
            return False
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            os.replace(self._aside, self._target)
        except OSError as error:
            self._give_up(error)
            return False
        return True

    def close(self) -> None:
        """Remove an unpublished file."""
        if self._file is not None:
            with suppress(OSError):  # a full disk is met again by the last buffered bytes
                self._file.close()
            self._aside.unlink(missing_ok=True)
            self._file = None

    def _open(self, header: bytes) -> None:
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(".tmp", f"{self._target.name}.", self._target.parent)
            self._aside = Path(name)
            self._file = os.fdopen(descriptor, "wb")
            self._file.write(len(header).to_bytes(8, "little") + header)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.warning("expanded weights are not kept in %s: %s", self._target.parent, error.strerror)
        self.close()


def _is_whole(file: Path, shapes: Mapping[str, Shape], dtype: Dtype) -> bool:
    """Whether the file ends where its header says and holds exactly these weights."""
    try:
        with safe_open(file, framework="numpy") as weights:
            if set(weights.keys()) != set(shapes):
                return False
            headers = {name: weights.get_slice(name) for name in shapes}
            return all(
                header.get_dtype() == _DTYPE_NAMES[dtype] and tuple(header.get_shape()) == shapes[name]
                for name, header in headers.items()
            )
    except (OSError, SafetensorError):
        return False


def _remove_outdated(file: Path) -> None:
    """Remove files of older states of the same source, and leftovers of killed writers."""
    source = file.name.split(".")[-4:-2]
    for other in file.parent.iterdir():
        if other.suffix == ".tmp":
            outdated = time.time() - other.stat().st_mtime > _LEFTOVER_AGE_S
        else:
            outdated = other.suffix == ".safetensors" and other.name.split(".")[-4:-2] == source and other != file
        if outdated:
            other.unlink()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
