"""The files of a GGUF checkpoint: a single file, or the parts NAME-00001-of-0000N.gguf that `llama-gguf-split` writes.

The first part has the metadata. Each has `split.no` (from 0), `split.count` and `split.tensors.count` (of all parts).
"""

import mmap
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoints.gguf.header import Header, TensorInfo, read_header
from engine.models.config import UnsupportedCheckpoint

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


@dataclass(frozen=True, slots=True)
class Part:
    """A file, mapped read-only. stat: its identity, size and time when it was opened."""

    path: Path
    data: mmap.mmap
    stat: os.stat_result
    header: Header

    def is_unchanged(self) -> bool:
        """Whether the path still names the file that was opened, unmodified."""
        try:
            return _identity(self.path.stat()) == _identity(self.stat)
        except OSError:
            return False

    def let_go(self) -> None:
        """Release the file's resident pages. Reading them again is valid, only slower: matrices may wait until those
        that are packed with them have been read."""
        self.data.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor and the part that holds it."""

    part: Part
    info: TensorInfo


def part_paths(path: Path) -> Sequence[Path]:
    """The files of a checkpoint by their names, whether or not they are there: the path alone, or all parts of it."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return (path,)
    name, count = match[1], int(match[3])
    return tuple(path.with_name(f"{name}-{number + 1:05}-of-{count:05}.gguf") for number in range(count))


def open_parts(path: Path) -> Sequence[Part]:
    """All parts of the checkpoint whose only or first file the path names.

    Raises:
        UnsupportedCheckpoint: a part is missing, cannot be read, or belongs elsewhere; the message names it.
    """
    first = _open(path)
    count = _number(first, _COUNT, 1)
    if count == 1:
        return (first,)
    paths = part_paths(path)
    if len(paths) != count:
        raise UnsupportedCheckpoint(
            f"{path.name}: {_COUNT} is {count}, and its name is not NAME-00001-of-{count:05}.gguf"
        )
    if path != paths[0]:
        raise UnsupportedCheckpoint(f"{path.name}: not the first of {count} parts; open {paths[0].name}")
    missing = [other.name for other in paths if not other.is_file()]
    if missing:
        raise UnsupportedCheckpoint(f"{missing[0]}: is missing, one of {count} parts")
    parts = [first, *(_open(other) for other in paths[1:])]
    tensors = _number(first, _TENSORS, None)
    for number, part in enumerate(parts):
        stated = (_number(part, _NUMBER, None), _number(part, _COUNT, None), _number(part, _TENSORS, None))
        if stated != (number, count, tensors):
            raise UnsupportedCheckpoint(
                f"{part.path.name}: {_NUMBER}, {_COUNT} and {_TENSORS} are {stated}, not {(number, count, tensors)}"
            )
    found = sum(len(part.header.tensors) for part in parts)
    if found != tensors:
        raise UnsupportedCheckpoint(f"{path.name}: {_TENSORS} is {tensors}; its parts have {found}")
    return parts


def tensors_of(parts: Sequence[Part]) -> dict[str, PlacedTensor]:
    """The tensors of all parts by name.

    Raises:
        UnsupportedCheckpoint: two parts have the same.
    """
    placed: dict[str, PlacedTensor] = {}
    for part in parts:
        for name, info in part.header.tensors.items():
            if name in placed:
                raise UnsupportedCheckpoint(
                    f"tensor {name} is in both {placed[name].part.path.name} and {part.path.name}"
                )
            placed[name] = PlacedTensor(part, info)
    return placed


def _open(path: Path) -> Part:
    try:
        with path.open("rb") as file:
            data, stat = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), os.fstat(file.fileno())
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise UnsupportedCheckpoint(f"{path.name}: cannot be read ({error})") from error
    return Part(path, data, stat, read_header(data))


def _number(part: Part, key: str, default: int | None) -> int:
    value = part.header.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UnsupportedCheckpoint(f"{part.path.name}: {key}: {value!r:.80} is not a count")
    return value


def _identity(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
