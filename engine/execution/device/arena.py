"""All state that uploads change, in one int32 tensor, so that one kernel applies any set of changes."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Words = npt.NDArray[np.int32]

_ALIGNMENT_WORDS = 64


@dataclass(slots=True)
class Changes:
    """Runs of words, each with its target offset in the arena. Runs must not overlap: they are written in no particular
    order."""

    starts: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    payload: list[int] = field(default_factory=list)
    table: Words | None = None
    """The words of a first run, before the payload."""

    @classmethod
    def of_table(cls, target: int, words: Words) -> Self:
        """Changes with a first run of many words [N]."""
        return cls([0], [target], table=words)

    def put(self, target: int, words: Sequence[int]) -> None:
        """Add a run."""
        if words:
            self.starts.append((0 if self.table is None else len(self.table)) + len(self.payload))
            self.targets.append(target)
            self.payload += words

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.starts)

    def words(self) -> Words:
        """The runs encoded for `kernels.reference_step.scatter_runs`, int32 [N]."""
        places, payload = (np.array(words, np.int32) for words in ((*self.starts, *self.targets), self.payload))
        return np.concatenate((places, payload) if self.table is None else (places, self.table, payload))


class Arena:
    """Tables in one int32 tensor on the device, each aligned for vector loads.

    `shapes`: rows and words of a row of each table.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]], device: torch.device) -> None:
        self._shapes = list(shapes)
        self._offsets: list[int] = []
        total = 0
        for lines, words in shapes:
            self._offsets.append(total)
            total += -(-lines * words // _ALIGNMENT_WORDS) * _ALIGNMENT_WORDS
        assert total < 2**31, "places in the arena have 32 bits"
        self.words = torch.zeros(total, dtype=torch.int32, device=device)

    def table(self, index: int) -> Tensor:
        """A view of a table, int32 [rows, words]."""
        (lines, words), offset = self._shapes[index], self._offsets[index]
        return self.words[offset : offset + lines * words].view(lines, words)

    def place(self, index: int, line: int, word: int = 0) -> int:
        """Offset in the arena of a word of a table."""
        return self._offsets[index] + line * self._shapes[index][1] + word


def float_word(value: float) -> int:
    """The bits of a float32 as a word."""
    word: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return word


def long_words(value: int) -> tuple[int, int]:
    """The low 64 bits of a number as two words."""
    low, high = struct.unpack("<ii", struct.pack("<Q", value & (2**64 - 1)))
    return low, high
