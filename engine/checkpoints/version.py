"""A short identifier of a checkpoint's content, equal on every machine that serves the same files."""

import hashlib
from pathlib import Path

from engine.checkpoints.gguf.parts import part_paths

_SAMPLES = 64
_SAMPLE_BYTES = 16 * 1024
_DIGITS = 12


def checkpoint_version(path: Path) -> str:
    """12 hexadecimal digits for a GGUF file with its further parts, or a Hugging Face folder.

    Hashes each file's name within the folder, its size and 64 samples of 16 KiB, so that no start reads gigabytes.
    Training changes every tensor, so different weights have different versions; a file of the same size that was
    tampered with between the samples does not.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256()
    if path.is_file():
        _add(digest, "", path)
        for part in part_paths(path):
            if part != path and part.is_file():
                _add(digest, part.name, part)
    else:
        for file in sorted(file_ for file_ in path.iterdir() if file_.suffix in (".json", ".safetensors")):
            _add(digest, file.name, file)
    return digest.hexdigest()[:_DIGITS]


def _add(digest: "hashlib._Hash", name: str, file: Path) -> None:
    size = file.stat().st_size
    digest.update(f"{name}\0{size}\0".encode())
    step = max(_SAMPLE_BYTES, -(-size // _SAMPLES))
    with file.open("rb") as content:
        for start in range(0, size, step):
            content.seek(start)
            digest.update(content.read(_SAMPLE_BYTES))
        content.seek(max(0, size - _SAMPLE_BYTES))
        digest.update(content.read(_SAMPLE_BYTES))
