"""Tensors of a safetensors file as memory-mapped views. The format's own package copies them, which takes as long as
packing does.

The format: header length u64 | JSON of name to dtype, shape and data offsets | data
(https://huggingface.co/docs/safetensors).
"""

import json
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from kernels.arrays import BFLOAT16, FLOAT16, FLOAT32, Array, Dtype

DTYPES: dict[str, Dtype] = {"F32": FLOAT32, "F16": FLOAT16, "BF16": BFLOAT16}
"""The dtypes of weights by their names in a header."""


def mapped_tensors(path: Path, names: Iterable[str]) -> Iterator[tuple[str, Array]]:
    """Read-only views of the named tensors of a file with a validated header, each of a dtype in `DTYPES`."""
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    for name in names:
        entry = header[name]
        first, end = entry["data_offsets"]
        stored = np.frombuffer(data, np.uint8, end - first, start + first)
        numbers = stored.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
        yield name, np.require(numbers, requirements="A")
        # What was read must not stay resident; where it is still wanted, reading it again is no error.
        data.madvise(mmap.MADV_DONTNEED)
