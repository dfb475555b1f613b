"""Reads the header of a GGUF file (versions 2 and 3, little-endian), which is untrusted.

    "GGUF" | version u32 | tensor count u64 | key count u64 | keys | tensor descriptions | padding | tensor data

Every count, length and offset is checked against the size of the file before anything is allocated from it; the `gguf`
package's reader is not written for hostile files. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from engine.models.config import MAX_LAYERS, UnsupportedCheckpoint
from engine.models.layout import Shape

Buffer = bytes | mmap.mmap

MAX_KEYS = 4096
MAX_TENSORS = 16 * MAX_LAYERS
_MAX_KEY_BYTES = 65_535
_MAX_NAME_BYTES = 256
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 16
_DEFAULT_ALIGNMENT = 32

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS: Mapping[int, np.dtype[Any]] = {
    code: np.dtype(name)
    for code, name in {
        0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"
    }.items()
}  # fmt: skip
_FLOAT32, _STRING, _ARRAY = 6, 8, 9


@dataclass(frozen=True, slots=True)
class BlockType:
    """A storage format: blocks of `weights` numbers in `bytes` bytes."""

    code: int
    name: str
    weights: int
    bytes: int


BLOCK_TYPES: Mapping[int, BlockType] = {
    block.code: block
    for block in (
        BlockType(0, "F32", 1, 4),
        BlockType(1, "F16", 1, 2),
        BlockType(30, "BF16", 1, 2),
        BlockType(2, "Q4_0", 32, 18),
        BlockType(3, "Q4_1", 32, 20),
        BlockType(6, "Q5_0", 32, 22),
        BlockType(7, "Q5_1", 32, 24),
        BlockType(8, "Q8_0", 32, 34),
        BlockType(10, "Q2_K", 256, 84),
        BlockType(11, "Q3_K", 256, 110),
        BlockType(12, "Q4_K", 256, 144),
        BlockType(13, "Q5_K", 256, 176),
        BlockType(14, "Q6_K", 256, 210),
        BlockType(20, "IQ4_NL", 32, 18),
        BlockType(23, "IQ4_XS", 256, 136),
        BlockType(39, "MXFP4", 32, 17),
    )
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's location: `bytes` bytes from `offset` of the file, rows of `shape[-1]` weights one after another.

    `shape` has the outermost dimension first, as in torch; the file has the reverse.
    """

    name: str
    type: BlockType
    shape: Shape
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata and the tensors by name."""

    metadata: "Metadata"
    tensors: Mapping[str, TensorInfo]


class _Value(NamedTuple):
    """The location of a value: `length` items of type `code` from `offset`; a scalar has one item and `array` False."""

    code: int
    offset: int
    length: int
    array: bool


class Metadata(Mapping[str, Any]):
    """The file's key-value section. Values are decoded on access and not cached."""

    def __init__(self, data: Buffer, values: Mapping[str, _Value]) -> None:
        self._data = data
        self._values = values

    def __getitem__(self, key: str) -> Any:
        """The value as plain Python; strings and lists of strings are decoded from UTF-8.

        Raises:
            UnsupportedCheckpoint: a string is not UTF-8; the message names the key.
        """
        code, offset, length, array = self._values[key]
        if code == _STRING:
            try:
                strings = self._strings(offset, length)
            except UnicodeDecodeError as error:
                _refuse(key, f"is not UTF-8 ({error.reason})")
            return strings if array else strings[0]
        items = np.frombuffer(self._data, _SCALARS[code], length, offset)
        if array:
            return items.tolist()
        # The shortest decimal that names the same float32: 1e-05, not 9.999999747378752e-06.
        return float(str(items[0])) if code == _FLOAT32 else items[0].item()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def length(self, key: str) -> int:
        """Items of an array, without reading them; 1 for a scalar."""
        return self._values[key].length

    def _strings(self, offset: int, count: int) -> list[str]:
        data, unpack = self._data, _U64.unpack_from
        strings = []
        for _ in range(count):
            start = offset + 8
            offset = start + unpack(data, offset)[0]
            strings.append(str(data[start:offset], "utf-8"))
        return strings


def read_header(data: Buffer) -> Header:
    """Read and check a header. `data`: the whole file, memory-mapped.

    Raises:
        UnsupportedCheckpoint: not a GGUF file, truncated, or with a number that does not fit the file; the message
            names the key or the tensor.
    """
    cursor = _Cursor(data)
    if cursor.take(4, "magic") != b"GGUF":
        raise UnsupportedCheckpoint("not a GGUF file")
    version = cursor.u32("version")
    if version not in (2, 3):
        raise UnsupportedCheckpoint(f"GGUF version {version & 0xFFFFFFFF}: only 2 and 3, little-endian, are read")
    tensor_count, key_count = cursor.u64("tensor count"), cursor.u64("key count")
    if key_count > MAX_KEYS:
        _refuse("key count", f"{key_count} is more than {MAX_KEYS}")
    if tensor_count > MAX_TENSORS:
        _refuse("tensor count", f"{tensor_count} is more than {MAX_TENSORS}")
    values: dict[str, _Value] = {}
    for _ in range(key_count):
        key = cursor.name("a key", _MAX_KEY_BYTES)
        if key in values:
            _refuse(key, "is there twice")
        values[key] = _read_value(cursor, key)
    metadata = Metadata(data, values)
    described = [_read_tensor(cursor) for _ in range(tensor_count)]
    return Header(metadata, _place(described, cursor.offset, _alignment(metadata), len(data)))


class _Cursor:
    """A read position bounded by the file's end. `what` names the item being read, for error messages."""

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.offset = 0

    def take(self, count: int, what: str) -> bytes:
        start = self.offset
        self.skip(count, what)
        return bytes(self.data[start : self.offset])

    def skip(self, count: int, what: str) -> None:
        if count > len(self.data) - self.offset:
            _refuse(what, f"needs {count} bytes, but {len(self.data) - self.offset} are left in the file")
        self.offset += count

    def u32(self, what: str) -> int:
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack(self.take(8, what))[0])

    def name(self, what: str, max_bytes: int) -> str:
        length = self.u64(what)
        if length > max_bytes:
            _refuse(what, f"{length} bytes long, more than {max_bytes}")
        try:
            name = self.take(length, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UnsupportedCheckpoint(f"{what}: is not UTF-8") from error
        # Names end up in messages and logs.
        if not name.isprintable():
            _refuse(what, f"{name!r:.200} is not printable")
        return name

    def skip_strings(self, count: int, what: str) -> None:
        """Skip length-prefixed strings. A plain loop, as vocabularies have hundreds of thousands."""
        data, offset, last, unpack = self.data, self.offset, len(self.data) - 8, _U64.unpack_from
        for _ in range(count):
            if offset > last:
                _refuse(what, "is cut off by the end of the file")
            offset += 8 + unpack(data, offset)[0]
        if offset > len(data):
            _refuse(what, "is cut off by the end of the file")
        self.offset = offset


def _read_value(cursor: _Cursor, key: str) -> _Value:
    code, length, array = cursor.u32(key), 1, False
    if code == _ARRAY:
        code, length, array = cursor.u32(key), cursor.u64(key), True
    offset = cursor.offset
    if code == _STRING:
        cursor.skip_strings(length, key)
    elif code in _SCALARS:
        cursor.skip(length * _SCALARS[code].itemsize, key)
    else:
        _refuse(key, f"value type {code} is not understood")
    return _Value(code, offset, length, array)


def _read_tensor(cursor: _Cursor) -> TensorInfo:
    """One tensor description. Its offset is relative to the start of the tensor data."""
    name = cursor.name("a tensor's name", _MAX_NAME_BYTES)
    what = f"tensor {name}"
    dimensions = cursor.u32(what)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        _refuse(what, f"has {dimensions} dimensions")
    shape = tuple(cursor.u64(what) for _ in range(dimensions))[::-1]
    code, offset = cursor.u32(what), cursor.u64(what)
    if code not in BLOCK_TYPES:
        known = ", ".join(block.name for block in BLOCK_TYPES.values())
        _refuse(what, f"stored as type {code}, which is not one of {known}")
    block = BLOCK_TYPES[code]
    if 0 in shape or shape[-1] % block.weights:
        _refuse(what, f"shape {list(shape)} does not fill blocks of {block.weights}")
    return TensorInfo(name, block, shape, offset, math.prod(shape) // block.weights * block.bytes)


def _place(described: list[TensorInfo], end: int, alignment: int, size: int) -> dict[str, TensorInfo]:
    """Convert offsets to file positions, and check that they are aligned, inside the file and do not overlap."""
    start = -(-end // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for info in described:
        if info.name in tensors:
            _refuse(f"tensor {info.name}", "is there twice")
        if info.offset % alignment:
            _refuse(f"tensor {info.name}", f"offset {info.offset} is not a multiple of {alignment}")
        if start + info.offset + info.bytes > size:
            _refuse(f"tensor {info.name}", f"{info.bytes} bytes at {info.offset} end after the file")
        tensors[info.name] = TensorInfo(info.name, info.type, info.shape, start + info.offset, info.bytes)
    last = start
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        if info.offset < last:
            _refuse(f"tensor {info.name}", "overlaps the one before it")
        last = info.offset + info.bytes
    return tensors


def _alignment(metadata: Metadata) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 8 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        _refuse("general.alignment", f"{alignment!r:.80} is not a power of two in 8..{_MAX_ALIGNMENT}")
    return alignment


def _refuse(what: str, why: str) -> NoReturn:
    raise UnsupportedCheckpoint(f"{what}: {why}")
