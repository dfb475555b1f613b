"""GGUF checkpoints in several files: read as one, and refused by the name of the file that is wrong."""

from pathlib import Path

import numpy as np
import pytest

from engine.checkpoints.checkpoint import open_checkpoint
from engine.checkpoints.gguf.file import GGUFCheckpoint
from engine.checkpoints.version import checkpoint_version
from engine.checkpoints.weight_cache import CachedCheckpoint
from engine.models.config import UnsupportedCheckpoint
from kernels.arrays import FLOAT32
from tests.engine.models.tiny_gguf import BlockType, make_gguf
from tests.support.tiny_models import TinyFolder

PER_FILE = 5


@pytest.fixture
def whole(tiny_folder: TinyFolder, tmp_path: Path) -> Path:
    return make_gguf(tmp_path / "whole.gguf", tiny_folder("llama"), BlockType.Q8_0)


@pytest.fixture
def first(tiny_folder: TinyFolder, tmp_path: Path) -> Path:
    return make_gguf(tmp_path / "tiny.gguf", tiny_folder("llama"), BlockType.Q8_0, tensors_per_file=PER_FILE)


def parts(first: Path) -> list[Path]:
    return sorted(first.parent.glob("tiny-*-of-*.gguf"))


def refused(path: Path) -> str:
    with pytest.raises(UnsupportedCheckpoint) as error:
        GGUFCheckpoint(path)
    return str(error.value)


def test_parts_equal_the_whole_file(whole: Path, first: Path) -> None:
    assert len(parts(first)) > 2
    one, several = GGUFCheckpoint(whole), GGUFCheckpoint(first)
    assert several.config == one.config
    assert several.weight_bytes == one.weight_bytes
    assert several.quantized == one.quantized
    expected = dict(one.tensors(FLOAT32))
    found = dict(several.tensors(FLOAT32))
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert np.array_equal(tensor, expected[name]), name
    blocks = dict(one.stored(one.quantized))
    for name, weight in several.stored(several.quantized):
        assert weight.format == "q8_0"
        assert np.array_equal(weight.rows, blocks[name].rows), name
    assert several.text_processor().encode("Hello") == one.text_processor().encode("Hello")


def test_a_missing_part_is_refused_by_name(first: Path) -> None:
    gone = parts(first)[1]
    gone.unlink()
    assert refused(first) == f"{gone.name}: is missing, one of {len(parts(first)) + 1} parts"


def test_another_part_than_the_first_is_refused_with_the_name_of_the_first(first: Path) -> None:
    assert first.name in refused(parts(first)[2])


def test_parts_of_another_name_are_refused(first: Path) -> None:
    renamed = first.rename(first.with_name("renamed.gguf"))
    assert refused(renamed).startswith("renamed.gguf: split.count is ")


def test_parts_in_another_order_are_refused_by_name(first: Path) -> None:
    second, third = parts(first)[1:3]
    content = second.read_bytes(), third.read_bytes()
    second.write_bytes(content[1])
    third.write_bytes(content[0])
    assert refused(first).startswith(f"{second.name}: split.no")


def test_a_part_of_another_model_is_refused_by_name(first: Path, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_gguf(tmp_path / "other" / "tiny.gguf", tiny_folder("qwen3"), tensors_per_file=PER_FILE)
    parts(first)[1].write_bytes(sorted(other.parent.glob("tiny-00002-of-*.gguf"))[0].read_bytes())
    assert parts(first)[1].name in refused(first)


def test_a_part_that_is_cut_off_is_refused(first: Path) -> None:
    last = parts(first)[-1]
    last.write_bytes(last.read_bytes()[:-64])
    assert "end after the file" in refused(first)


def test_a_change_of_any_part_is_seen(first: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(first, tmp_path / "cache")
    assert isinstance(checkpoint, CachedCheckpoint)
    before, version = checkpoint.cache_file(FLOAT32), checkpoint_version(first)
    last = parts(first)[-1]
    last.write_bytes(last.read_bytes()[:-1] + b"\x55")
    again = open_checkpoint(first, tmp_path / "cache")
    assert isinstance(again, CachedCheckpoint)
    assert again.cache_file(FLOAT32) != before
    assert checkpoint_version(first) != version
