"""The manifest of a distilled model that ships as a part. Reading it does not import torch."""

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
    """The content of `part.json`.

    `teacher`: catalogue name of the model whose embedding completes this one. `layers`: the teacher's layers that it
    was initialised from. `weights_bytes`, `weights_sha256`: of the assembled `model.safetensors`.
    """

    teacher: str
    teacher_sha256: str
    layers: tuple[int, ...]
    weights_bytes: int
    weights_sha256: str
    description: str
    license: str

    def folder_name(self, name: str) -> str:
        """The folder of the assembled model; differs by version of the part."""
        return f"{name}-{self.weights_sha256[:12]}"


def read_part(folder: Path) -> Part | None:
    """The manifest of a part; None if there is no such folder."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    value: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Part(**{**value, "layers": tuple(value["layers"])})


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file.

    In one call, which releases the GIL: reading in pieces waits for the GIL once a piece, which takes longer than the
    hash while the program is still importing.
    """
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:  # nothing cannot be mapped
            return hashlib.sha256().hexdigest()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return hashlib.sha256(content).hexdigest()
