"""Packs a distilled model into a part for shipping, and assembles it again with its teacher's embedding.

A part is a folder: `part.json` (see `shipped.py`), the model's `draft.safetensors`, and `layers.safetensors` with
vectors unchanged and matrices as int8 rows with a float32 scale each.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from engine.catalog.shipped import MANIFEST, Part, read_part, sha256
from engine.checkpoints.checkpoint import Checkpoint, open_checkpoint
from engine.checkpoints.huggingface.writer import WEIGHTS, write_folder
from engine.models.config import UnsupportedCheckpoint
from engine.models.layout import DRAFT, EMBEDDING, FREQUENT_TOKENS, HEAD
from kernels.arrays import BFLOAT16, Array

_LAYERS = "layers.safetensors"
_SCALE = ".scale"
_SHARED = (EMBEDDING, HEAD)


def pack(
    student: Path, teacher: Path, part: Path, *, name: str, layers: Sequence[int], description: str, license: str
) -> Part:
    """Pack a distilled model's folder into a part. `name`: its teacher's name in the catalogue."""
    part.mkdir(parents=True, exist_ok=True)
    own = {key: array for key, array in load_file(student / WEIGHTS).items() if key not in _SHARED}
    save_file(_quantised(own), part / _LAYERS)
    shutil.copyfile(student / DRAFT, part / DRAFT)
    # What comes out is known once it was made: it is what every assembly is compared with.
    whole = part / "whole"
    _write(part, open_checkpoint(teacher), layers, whole)
    weights = whole / WEIGHTS
    made = Part(name, sha256(teacher), tuple(layers), weights.stat().st_size, sha256(weights), description, license)
    shutil.rmtree(whole)
    (part / MANIFEST).write_text(json.dumps(asdict(made), indent=2) + "\n", encoding="utf-8")
    return made


def assemble(part: Path, teacher: Path, output: Path) -> None:
    """Write a part's model as an ordinary folder. Equal inputs give equal bytes on every machine.

    Raises:
        UnsupportedCheckpoint: the teacher is not the part's, or the result differs from what was packed.
    """
    made = read_part(part)
    if made is None:
        raise UnsupportedCheckpoint(f"{part} holds no {MANIFEST}")
    if sha256(teacher) != made.teacher_sha256:
        raise UnsupportedCheckpoint(f"{teacher} is not the file of {made.teacher} that {part.name} was made from")
    _write(part, open_checkpoint(teacher), made.layers, output)
    if sha256(output / WEIGHTS) != made.weights_sha256:
        raise UnsupportedCheckpoint(f"{part} is damaged: other weights come out than were packed")


def _quantised(weights: Mapping[str, Array]) -> dict[str, Array]:
    stored = {}
    for name, numbers in weights.items():
        if numbers.ndim == 1:
            stored[name] = numbers
            continue
        wide = numbers.astype(np.float32)
        scale = np.abs(wide).max(axis=1).clip(min=np.finfo(np.float32).tiny) / 127
        stored[name], stored[name + _SCALE] = np.rint(wide / scale[:, None]).astype(np.int8), scale
    return stored


def _write(part: Path, teacher: Checkpoint, layers: Sequence[int], output: Path) -> None:
    weights = {name: table for name, table in teacher.tensors(BFLOAT16) if name in _SHARED}
    stored = load_file(part / _LAYERS)
    for name, numbers in stored.items():
        if numbers.dtype == np.int8:
            weights[name] = (numbers.astype(np.float32) * stored[name + _SCALE][:, None]).astype(BFLOAT16)
        elif not name.endswith(_SCALE):
            weights[name] = numbers
    frequent = load_file(part / DRAFT)[FREQUENT_TOKENS]
    write_folder(output, teacher, teacher.config.of_layers(layers), weights, frequent)
