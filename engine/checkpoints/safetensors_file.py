"""Tensors of a safetensors file as memory-mapped views. The format's own package copies them, which takes as long as
packing does.

The format: header length u64 | JSON of name to dtype, shape and data offsets | data
(https://huggingface.co/docs/safetensors).
"""

import json
import math
import mmap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from engine.checkpoints.json_keys import shown
from engine.models.config import UnsupportedCheckpoint
from kernels.arrays import BFLOAT16, FLOAT16, FLOAT32, Array, Dtype

FLOAT_TYPES = ("F32", "F16", "BF16")
"""The types of plain weights."""
DTYPES: dict[str, Dtype] = {
    "F32": FLOAT32,
    "F16": FLOAT16,
    "BF16": BFLOAT16,
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
}
"""The dtypes of tensors by their names in a header."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a folder. file: its name there. type: one of `DTYPES`. within: the name of the file's tensor that it
    is a part of, and its numbers, from that tensor's; None: it is whole, under its own name."""

    file: str
    type: str
    shape: tuple[int, ...]
    bytes: int
    within: "tuple[str, Callable[[Array], Array]] | None" = None


class MappedFile:
    """A file with a validated header, mapped into memory."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._start = 8 + int.from_bytes(self._data[:8], "little")
        self._header = json.loads(self._data[8 : self._start])

    def tensor(self, name: str) -> Array:
        """A read-only view of a tensor, whose dtype is in `DTYPES`."""
        entry = self._header[name]
        first, end = entry["data_offsets"]
        stored = np.frombuffer(self._data, np.uint8, end - first, self._start + first)
        numbers = stored.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
        return np.require(numbers, requirements="A")

    def release(self) -> None:
        """Release resident pages. Reading them again is no error, only slower."""
        self._data.madvise(mmap.MADV_DONTNEED)


def mapped_tensors(path: Path, names: Iterable[str]) -> Iterator[tuple[str, Array]]:
    """Read-only views of the named tensors of a file with a validated header, each of a dtype in `DTYPES`."""
    file = MappedFile(path)
    for name in names:
        yield name, file.tensor(name)
        file.release()  # what was read must not stay resident


def stored_tensors(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors of a file, from its header alone.

    Raises:
        UnsupportedCheckpoint: the file is malformed, or a tensor has a type that is not in `DTYPES`.
    """
    with open_tensors(path) as file:
        for name in file.keys():  # noqa: SIM118
            if not name.isprintable():  # names end up in messages and logs
                raise UnsupportedCheckpoint(f"{path.name}: tensor {name!r:.200} is not printable")
            header = file.get_slice(name)
            kind, shape = header.get_dtype(), tuple(header.get_shape())
            if kind not in DTYPES:
                raise UnsupportedCheckpoint(f"tensor {shown(name)} has type {kind}, not one of {', '.join(DTYPES)}")
            yield name, StoredTensor(path.name, kind, shape, math.prod(shape) * DTYPES[kind].itemsize)


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """A handle of the format's own package, which checks the header against the file's size.

    Raises:
        UnsupportedCheckpoint: the file cannot be read, or is malformed.
    """
    try:
        handle = safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        raise UnsupportedCheckpoint(f"{path.name}: cannot be read ({shown(_reason(error))})") from error
    with handle:
        yield handle


def _reason(error: OSError | SafetensorError) -> str:
    """Without the path, which an error of the system has."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
