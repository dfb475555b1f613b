"""Expanded weights: written once, mapped afterwards, never in the way."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as BlockType

from engine.checkpoints.checkpoint import open_checkpoint
from engine.checkpoints.gguf.file import GGUFCheckpoint
from engine.checkpoints.weight_cache import CachedCheckpoint
from kernels.arrays import BFLOAT16, FLOAT32, Array, Dtype
from tests.engine.models.tiny_gguf import make_gguf
from tests.support.tiny_models import TinyFolder

Weights = dict[str, Array]


@pytest.fixture
def model(tiny_folder: TinyFolder, tmp_path: Path) -> Path:
    return make_gguf(tmp_path / "tiny.gguf", tiny_folder("llama"), BlockType.Q4_0)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "models" / "expanded"


def load(model: Path, cache: Path, dtype: Dtype = BFLOAT16) -> Weights:
    return dict(CachedCheckpoint(GGUFCheckpoint(model), cache).tensors(dtype))


def same(left: Weights, right: Weights) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


@pytest.fixture
def no_expansion(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: GGUFCheckpoint, dtype: Dtype, without: object = None) -> Iterator[object]:
        raise AssertionError("expanded again")

    monkeypatch.setattr(GGUFCheckpoint, "tensors", refuse)


def test_the_second_start_maps_the_first_ones_file(model: Path, cache: Path, request: pytest.FixtureRequest) -> None:
    first = load(model, cache)
    assert same(first, dict(GGUFCheckpoint(model).tensors(BFLOAT16)))
    request.getfixturevalue("no_expansion")
    assert same(load(model, cache), first)


def test_each_dtype_has_its_own_file(model: Path, cache: Path) -> None:
    narrow, wide = load(model, cache), load(model, cache, FLOAT32)
    assert len(list(cache.iterdir())) == 2
    assert same(load(model, cache, FLOAT32), wide)
    assert same(load(model, cache), narrow)


def test_a_changed_source_replaces_the_expanded_file(model: Path, cache: Path, tiny_folder: TinyFolder) -> None:
    before = load(model, cache)
    make_gguf(model, tiny_folder("llama", seed=1), BlockType.Q4_0)
    os.utime(model, ns=(0, model.stat().st_mtime_ns + 1))
    after = load(model, cache)
    assert not same(before, after)
    assert same(after, dict(GGUFCheckpoint(model).tensors(BFLOAT16)))
    assert len(list(cache.iterdir())) == 1


def test_a_source_that_changes_meanwhile_is_not_kept(model: Path, cache: Path) -> None:
    checkpoint = CachedCheckpoint(GGUFCheckpoint(model), cache)
    os.utime(model, ns=(0, model.stat().st_mtime_ns + 1))
    assert len(dict(checkpoint.tensors(BFLOAT16))) == 21
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("keep", [0, 7, 8, 200, 5000, -1])
def test_a_torn_file_is_written_again(keep: int, model: Path, cache: Path) -> None:
    whole = load(model, cache)
    (file,) = cache.iterdir()
    data = file.read_bytes()
    file.write_bytes(data[:keep])
    assert same(load(model, cache), whole)
    assert file.read_bytes() == data


def test_a_file_with_other_weights_is_written_again(model: Path, cache: Path, tiny_folder: TinyFolder) -> None:
    whole = load(model, cache)
    (file,) = cache.iterdir()
    shutil.copy(tiny_folder("llama") / "model.safetensors", file)  # float32
    assert same(load(model, cache), whole)


def test_a_load_that_is_given_up_leaves_nothing(model: Path, cache: Path) -> None:
    tensors = CachedCheckpoint(GGUFCheckpoint(model), cache).tensors(BFLOAT16)
    next(tensors)
    assert len(list(cache.iterdir())) == 1
    tensors.close()  # type: ignore[attr-defined]
    assert list(cache.iterdir()) == []


def test_without_a_folder_each_start_expands(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert len(load(model, tmp_path / "file" / "expanded")) == 21
    assert "expanded weights are not kept" in caplog.text


def test_a_full_disk_is_no_reason_not_to_serve(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert len(load(model, cache)) == 21
    assert list(cache.iterdir()) == []
    assert "No space left" in caplog.text


def test_what_a_killed_writer_left_behind_goes(model: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    old, young, foreign = cache / "old.tmp", cache / "young.tmp", cache / "mine.safetensors"
    for path in (old, young, foreign):
        path.write_bytes(b"")
    os.utime(old, (0, time.time() - 7200))
    load(model, cache)
    assert (old.exists(), young.exists(), foreign.exists()) == (False, True, True)


def test_only_quantised_files_are_kept(model: Path, cache: Path, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    plain = make_gguf(tmp_path / "plain.gguf", tiny_folder("llama"), BlockType.BF16)
    for path in (plain, tiny_folder("llama")):
        assert len(dict(open_checkpoint(path, cache).tensors(BFLOAT16))) == 21
    assert not cache.exists()
    checkpoint = open_checkpoint(model, cache)
    assert len(dict(checkpoint.tensors(BFLOAT16))) == 21
    assert len(list(cache.iterdir())) == 1
    assert checkpoint.path == model
    assert checkpoint.weight_bytes == GGUFCheckpoint(model).weight_bytes
    assert checkpoint.text_processor().encode("a") == GGUFCheckpoint(model).text_processor().encode("a")
