"""Quantised folders that were tampered with: refused by name, never another error, and nothing allocated from a lie."""

import json
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.models.config import UnsupportedCheckpoint
from kernels.arrays import FLOAT32
from tests.engine.models.quantization.folders import CASES, write
from tests.support.tiny_models import TinyFolder

FIXED_BYTES = 512 * 1024
"""Python's own objects."""
EXPANSION = 24
"""Bytes that reading may take for each byte of a file: float32 of four bits are eight, with copies on the way."""
NAMES = (
    "gptq-4-32-gptq-sym",
    "gptq-4-64-gptq-asym-desc",
    "awq-32",
    "pack-4-32-asym",
    "int8-asym",
    "fp8-(128, 128)",
    "mxfp4",
    "nf4-nested",
)
SCALES = ("scales", "weight_scale", "weight_scale_inv", "nested_absmax")
CHANGES = 50
"""Folders made of one seed."""
seeds = pytest.mark.parametrize("seed", range(5))
TYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "X", 7, None)
NUMBERS = (-1, 0, 1, 2, 3, 31, 33, 48, 64, 2**31, 2**63 - 1, 2**64, 1e30, 0.5)
VALUES = (None, True, False, "", "x", "gemm", [], [0, 0], [128, 128], {}, {"a": {}}, *NUMBERS)

Sound = tuple[bytes, dict[str, Any]]


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tiny_folder: TinyFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "folder"
    case = next(case for case in CASES if case.name == request.param)
    shape = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32, "num_hidden_layers": 1}
    write(path, tiny_folder("llama", **shape), case)
    return path


@pytest.fixture(scope="module")
def sound(folder: Path) -> Sound:
    return (folder / "model.safetensors").read_bytes(), json.loads((folder / "config.json").read_text())


def each(seed: int) -> Iterator[Random]:
    """Sources of changes, each of which can be had alone by its own seed."""
    return (Random(CHANGES * seed + index) for index in range(CHANGES))


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and tensors of a file."""
    end = 8 + struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:end]), data[end:]


def joined(header: dict[str, Any], tensors: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + tensors


def open_bounded(
    folder: Path, sound: Sound, data: bytes | None = None, config: dict[str, Any] | None = None
) -> str | None:
    """Open and read all of it. Why it was refused, or None; another error, or much memory, fails the test."""
    (folder / "model.safetensors").write_bytes(sound[0] if data is None else data)
    (folder / "config.json").write_text(json.dumps(sound[1] if config is None else config))
    size, refused = (folder / "model.safetensors").stat().st_size, None
    tracemalloc.start()
    try:
        checkpoint = HFCheckpoint(folder)
        opened = tracemalloc.get_traced_memory()[1]
        kept = {name for name, matrix in checkpoint.quantized.items() if matrix.block_format is not None}
        for _ in checkpoint.tensors(FLOAT32):
            pass
        for _ in checkpoint.stored(kept):
            pass
    except UnsupportedCheckpoint as error:
        refused, opened = str(error), 0
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert opened <= 2 * size + FIXED_BYTES
    assert peak <= EXPANSION * size + FIXED_BYTES
    assert refused is None or refused.isprintable()
    return refused


def test_the_folder_is_read(folder: Path, sound: Sound) -> None:
    assert open_bounded(folder, sound) is None


def other_header(random: Random, header: dict[str, Any]) -> None:
    """Change the type, shape, place or name of a tensor."""
    names = sorted(set(header) - {"__metadata__"})
    name = random.choice(names)
    entry = dict(header[name])
    header[name] = entry
    match random.choice(("dtype", "shape", "transpose", "offsets", "remove", "rename", "swap")):
        case "dtype":
            entry["dtype"] = random.choice(TYPES)
        case "shape":
            entry["shape"] = random.choices(NUMBERS, k=random.randrange(4))
        case "transpose":
            entry["shape"] = entry["shape"][::-1]
        case "offsets":
            entry["data_offsets"] = random.choices(NUMBERS, k=2)
        case "remove":
            del header[name]
        case "rename":
            header[random.choice((f"{name}x", "model.layers.0.mlp.up_proj.weight", "\n"))] = header.pop(name)
        case _:
            header[name] = header[random.choice(names)]


def other_value(random: Random, config: dict[str, Any]) -> None:
    """Change a value of the quantisation's config, at any depth."""
    level = config["quantization_config"]
    while True:
        key = random.choice((*level, "extra_key"))
        if isinstance(level.get(key), dict) and level[key] and random.random() < 0.7:
            level = level[key]
            continue
        level[key] = random.choice(VALUES)
        return


@seeds
def test_headers_with_other_types_shapes_and_names(seed: int, folder: Path, sound: Sound) -> None:
    for random in each(seed):
        header, tensors = split(sound[0])
        for _ in range(random.randint(1, 3)):
            other_header(random, header)
        open_bounded(folder, sound, joined(header, tensors))


@seeds
def test_configs_with_other_values(seed: int, folder: Path, sound: Sound) -> None:
    for random in each(seed):
        config = json.loads(json.dumps(sound[1]))
        other_value(random, config)
        open_bounded(folder, sound, config=config)


@seeds
def test_bytes_changed_at_random(seed: int, folder: Path, sound: Sound) -> None:
    header_bytes = 8 + struct.unpack("<Q", sound[0][:8])[0]
    for random in each(seed):
        changed = bytearray(sound[0])
        end = random.choice((header_bytes, len(changed)))
        for _ in range(random.randint(1, 6)):
            changed[random.randrange(end)] = random.randrange(256)
        open_bounded(folder, sound, bytes(changed))


@pytest.mark.parametrize("bits", [0x7FFF, 0x7F80])
def test_scales_that_are_not_finite_are_refused_by_name(bits: int, folder: Path, sound: Sound) -> None:
    """All ones, and infinity, in whatever type."""
    header, tensors = split(sound[0])
    name = next(name for name in header if name.split(".")[-1] in SCALES)
    first, end = header[name]["data_offsets"]
    value = {"F16": np.uint16(0x7C00 if bits == 0x7F80 else bits), "BF16": np.uint16(bits), "U8": np.uint8(255)}.get(
        header[name]["dtype"], np.uint32(bits << 16)
    )
    changed = tensors[: end - value.nbytes] + value.tobytes() + tensors[end:]
    assert first < end
    why = open_bounded(folder, sound, joined(header, changed))
    assert why is not None
    assert why.startswith(f"tensor {name}: ")


def test_a_layer_of_which_a_tensor_is_missing_is_refused_by_name(folder: Path, sound: Sound) -> None:
    header, tensors = split(sound[0])
    quantized = [name for name in header if ".mlp.down_proj." in name and not name.endswith("g_idx")]
    for name in quantized:
        left = {key: entry for key, entry in header.items() if key != name}
        filler = {"dtype": "U8", "shape": [header[name]["data_offsets"][1] - header[name]["data_offsets"][0]]}
        left["filler"] = filler | {"data_offsets": header[name]["data_offsets"]}
        why = open_bounded(folder, sound, joined(left, tensors))
        assert why is not None
