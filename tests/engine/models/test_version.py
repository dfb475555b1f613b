"""The same files have the same version anywhere, other files another."""

import random
from pathlib import Path

import pytest

from engine.checkpoints.version import checkpoint_version


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 3_000_000])
def test_a_files_version_is_that_of_its_content(tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    version = checkpoint_version(written(tmp_path / "a" / "m.gguf", content))
    assert version == checkpoint_version(written(tmp_path / "b" / "other.gguf", content))
    assert version != checkpoint_version(written(tmp_path / "longer", content + b"x"))
    if size:
        assert version != checkpoint_version(written(tmp_path / "first", bytes([content[0] ^ 1]) + content[1:]))
        assert version != checkpoint_version(written(tmp_path / "last", content[:-1] + bytes([content[-1] ^ 1])))


def test_a_folders_version_is_that_of_its_configuration_and_weights(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"weights", "README.md": b"words"}

    def version(name: str, changes: dict[str, bytes]) -> str:
        for file, content in (files | changes).items():
            written(tmp_path / name / file, content)
        return checkpoint_version(tmp_path / name)

    first = version("first", {})
    assert version("same", {"README.md": b"other words"}) == first
    assert version("config", {"config.json": b"[]"}) != first
    assert version("weights", {"model.safetensors": b"wEights"}) != first
    assert version("more", {"model-2.safetensors": b""}) != first
