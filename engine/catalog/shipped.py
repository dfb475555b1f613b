"""What is said of a distilled model that ships in parts. Reading it needs no torch."""

import hashlib
import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "part.json"


@dataclass(frozen=True, slots=True)
class Part:
    """What `part.json` says of a model's own layers.

    `teacher` is the catalogue's name of the model whose embedding completes it, `layers` those of the teacher's that it
    started from. `weights_bytes` and `weights_sha256` are of the `model.safetensors` that is put together.
    """

    teacher: str
    teacher_sha256: str
    layers: tuple[int, ...]
    weights_bytes: int
    weights_sha256: str
    description: str
    license: str

    def folder_name(self, name: str) -> str:
        """Another version of a part makes another folder."""
        return f"{name}-{self.weights_sha256[:12]}"


def read_part(folder: Path) -> Part | None:
    """None where the folder is not there."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    value: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Part(**{**value, "layers": tuple(value["layers"])})


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file.

    In one call, which holds no interpreter lock: read piece by piece, a file waits for the lock as often, and while the
    program is still importing that is longer than it takes.
    """
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:  # nothing cannot be mapped
            return hashlib.sha256().hexdigest()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return hashlib.sha256(content).hexdigest()
