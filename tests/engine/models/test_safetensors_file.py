"""Numbers where a file has them: of every type, aligned or not, and never to be written to."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.checkpoints.safetensors_file import DTYPES, mapped_tensors
from kernels.arrays import Array


def numbers_of(name: str) -> Array:
    first = 1 if name == "F8_E8M0" else -12  # whose numbers are positive
    return np.arange(first, first + 24).reshape(4, 6).astype(DTYPES[name])


@pytest.mark.parametrize("name", DTYPES)
def test_numbers_are_those_that_were_written(name: str, tmp_path: Path) -> None:
    whole = numbers_of(name)
    save_file({"a": whole, "b": whole[:2], "c": whole[0]}, tmp_path / "x.safetensors")
    read = dict(mapped_tensors(tmp_path / "x.safetensors", ["c", "a"]))
    assert list(read) == ["c", "a"]
    for array, expected in ((read["a"], whole), (read["c"], whole[0])):
        assert array.dtype == expected.dtype
        assert np.array_equal(array, expected)
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


@pytest.mark.parametrize("spaces", range(4))
def test_numbers_may_lie_anywhere(spaces: int, tmp_path: Path) -> None:
    """The format wants no alignment, and who computes does."""
    whole = numbers_of("F32")
    entry = {"dtype": "F32", "shape": whole.shape, "data_offsets": [0, whole.nbytes]}
    header = json.dumps({"a": entry}).encode() + b" " * spaces
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + whole.tobytes())
    [(_, array)] = mapped_tensors(path, ["a"])
    assert array.flags.aligned
    assert np.array_equal(array, whole)
