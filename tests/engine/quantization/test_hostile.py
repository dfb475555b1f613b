"""Quantised folders that were tampered with: refused by name, never another error, and nothing allocated from a lie."""

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.models.config import UnsupportedCheckpoint
from kernels.arrays import FLOAT32
from tests.engine.quantization.folders import CASES, Case, write
from tests.support.tiny_models import TinyFolder

FIXED_BYTES = 512 * 1024
"""Python's own objects."""
EXPANSION = 24
"""Bytes that reading may take for each byte of a file: float32 of four bits are eight, with copies on the way."""
NAMES = ("gptq-4-32-gptq-sym", "gptq-4-32-gptq-asym-desc", "awq-32", "pack-4-32-asym", "int8-asym", "fp8-(128, 128)")
FUZZ = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "X", 7, None)
NUMBERS = (-1, 0, 1, 2, 3, 31, 33, 48, 64, 2**31, 2**63 - 1, 2**64, 1e30, 0.5)
VALUES = (None, True, False, "", "x", "gemm", [], [0, 0], [128, 128], {}, {"a": {}}, *NUMBERS)

Sound = tuple[bytes, dict[str, Any]]


def small_case(name: str) -> Case:
    """The case of that name, or the first of its method where no such one is in `CASES`."""
    prefix = name.split("-")[0]
    return next(
        (case for case in CASES if case.name == name), next(case for case in CASES if case.name.startswith(prefix))
    )


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tiny_folder: TinyFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "folder"
    case = small_case(request.param)
    shape = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32, "num_hidden_layers": 1}
    write(path, tiny_folder("llama", **shape), case)
    return path


@pytest.fixture(scope="module")
def sound(folder: Path) -> Sound:
    return (folder / "model.safetensors").read_bytes(), json.loads((folder / "config.json").read_text())


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
    size = (folder / "model.safetensors").stat().st_size
    tracemalloc.start()
    try:
        checkpoint = HFCheckpoint(folder)
        assert tracemalloc.get_traced_memory()[1] <= 2 * size + FIXED_BYTES
        kept = {name for name, matrix in checkpoint.quantized.items() if matrix.block_format is not None}
        for _ in checkpoint.tensors(FLOAT32):
            pass
        for _ in checkpoint.stored(kept):
            pass
    except UnsupportedCheckpoint as error:
        assert str(error).isprintable()
        return str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= EXPANSION * size + FIXED_BYTES
    return None


def test_the_folder_is_read(folder: Path, sound: Sound) -> None:
    assert open_bounded(folder, sound) is None


@FUZZ
@given(data=st.data())
def test_headers_with_other_types_shapes_and_names(folder: Path, sound: Sound, data: st.DataObject) -> None:
    header, tensors = split(sound[0])
    names = sorted(set(header) - {"__metadata__"})
    for _ in range(data.draw(st.integers(1, 3))):
        entry = header.get(name := data.draw(st.sampled_from(names)), {"shape": [1], "data_offsets": [0, 4]})
        change = data.draw(st.sampled_from(("dtype", "shape", "transpose", "offsets", "remove", "rename", "swap")))
        match change:
            case "dtype":
                entry["dtype"] = data.draw(st.sampled_from(TYPES))
            case "shape":
                entry["shape"] = data.draw(st.lists(st.sampled_from(NUMBERS), max_size=3))
            case "transpose":
                entry["shape"] = entry["shape"][::-1]
            case "offsets":
                entry["data_offsets"] = data.draw(st.lists(st.sampled_from(NUMBERS), min_size=2, max_size=2))
            case "remove":
                header.pop(name, None)
            case "rename":
                header[data.draw(st.sampled_from((f"{name}x", "model.layers.0.mlp.up_proj.weight", "\n")))] = entry
            case _:
                header[name] = header.get(data.draw(st.sampled_from(names)), entry)
    open_bounded(folder, sound, joined(header, tensors))


@FUZZ
@given(data=st.data())
def test_configs_with_other_values(folder: Path, sound: Sound, data: st.DataObject) -> None:
    config = json.loads(json.dumps(sound[1]))
    level = config["quantization_config"]
    while True:
        key = data.draw(st.sampled_from((*level, "extra_key")))
        if isinstance(level.get(key), dict) and level[key] and data.draw(st.booleans()):
            level = level[key]
            continue
        level[key] = data.draw(st.sampled_from(VALUES))
        break
    open_bounded(folder, sound, config=config)


@FUZZ
@given(data=st.data())
def test_bytes_changed_at_random(folder: Path, sound: Sound, data: st.DataObject) -> None:
    changed = bytearray(sound[0])
    end = len(changed) if data.draw(st.booleans()) else 8 + struct.unpack("<Q", changed[:8])[0]
    places = st.integers(0, end - 1)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=6)):
        changed[place] = value
    open_bounded(folder, sound, bytes(changed))


@pytest.mark.parametrize("bits", [0x7FFF, 0x7F80])
def test_scales_that_are_not_finite_are_refused_by_name(bits: int, folder: Path, sound: Sound) -> None:
    """All ones, and infinity, in whatever type."""
    header, tensors = split(sound[0])
    name = next(name for name in header if name.split(".")[-1] in ("scales", "weight_scale", "weight_scale_inv"))
    first, end = header[name]["data_offsets"]
    value = {"F16": np.uint16(0x7C00 if bits == 0x7F80 else bits), "BF16": np.uint16(bits)}.get(
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
