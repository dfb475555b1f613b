"""Files that were cut short or tampered with: refused by name, never another error, never a large allocation."""

import struct
import tracemalloc
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.checkpoints.gguf.file import GGUFCheckpoint
from engine.checkpoints.gguf.header import MAX_KEYS, MAX_TENSORS, read_header
from engine.models.config import UnsupportedCheckpoint
from kernels.arrays import FLOAT32
from tests.engine.models.tiny_gguf import make_gguf
from tests.support.tiny_models import TinyFolder

FIXED_BYTES = 256 * 1024
"""Bytes that opening may allocate for a file of any size: Python's own objects."""

EXTREMES = (0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


@pytest.fixture(scope="module")
def sound(tiny_folder: TinyFolder, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "sound.gguf"
    keys = {"tokenizer.ggml.tokens": ["a", "b" * 300, "ü", ""], "tokenizer.ggml.scores": [0.0, 1.0]}
    make_gguf(path, tiny_folder("llama", num_hidden_layers=1), keys=keys, tokenizer=False)
    return path.read_bytes()


@pytest.fixture(scope="module")
def header_bytes(sound: bytes) -> int:
    return min(info.offset for info in read_header(sound).tensors.values())


def open_bounded(path: Path, data: bytes) -> bool:
    """Open and read all of it; False if it was refused. Any other error, or much memory, fails the test."""
    path.write_bytes(data)
    tracemalloc.start()
    refused: str | None = None
    try:
        checkpoint = GGUFCheckpoint(path)
        dict(checkpoint._metadata)
    except UnsupportedCheckpoint as error:
        refused = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= 2 * len(data) + FIXED_BYTES
    if refused is not None:
        assert refused.isprintable()
        return False
    for _ in checkpoint.tensors(FLOAT32):
        pass
    return True


def test_a_file_cut_anywhere_is_refused(sound: bytes, header_bytes: int, tmp_path: Path) -> None:
    assert open_bounded(tmp_path / "x.gguf", sound)
    cuts = {*range(64), *range(64, header_bytes, 7), *range(header_bytes - 40, header_bytes + 40)}
    cuts |= {*range(header_bytes, len(sound), 9973), *range(len(sound) - 40, len(sound))}
    for cut in sorted(cuts):
        # Behind the last tensor there is padding, which is not read.
        assert not open_bounded(tmp_path / "x.gguf", sound[:cut]) or cut > len(sound) - 32, cut


# One file is written over and over: nothing is kept between examples.
FUZZ = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(data=st.data())
def test_bytes_changed_at_random(sound: bytes, header_bytes: int, tmp_path: Path, data: st.DataObject) -> None:
    changed = bytearray(sound)
    places = st.integers(0, header_bytes - 1)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=6)):
        changed[place] = value
    open_bounded(tmp_path / "x.gguf", bytes(changed))


@FUZZ
@given(data=st.data())
def test_numbers_changed_to_extremes(sound: bytes, header_bytes: int, tmp_path: Path, data: st.DataObject) -> None:
    place = data.draw(st.integers(4, header_bytes - 8))
    changed = bytearray(sound)
    struct.pack_into("<Q", changed, place, data.draw(st.sampled_from(EXTREMES)))
    open_bounded(tmp_path / "x.gguf", bytes(changed))


@pytest.mark.parametrize("layers", [2, 1024, 1025, 2**32 - 1])
def test_claimed_layers_cost_nothing(layers: int, sound: bytes, tmp_path: Path) -> None:
    claim = b"llama.block_count" + struct.pack("<I", 4)
    assert sound.count(claim + struct.pack("<I", 1)) == 1
    changed = sound.replace(claim + struct.pack("<I", 1), claim + struct.pack("<I", layers))
    assert not open_bounded(tmp_path / "x.gguf", changed)


@FUZZ
@given(data=st.binary(max_size=400), tensors=st.integers(0, 2**64 - 1), keys=st.integers(0, 2**64 - 1))
def test_noise_behind_a_good_start(tmp_path: Path, data: bytes, tensors: int, keys: int) -> None:
    assert not open_bounded(tmp_path / "x.gguf", struct.pack("<4sIQQ", b"GGUF", 3, tensors, keys) + data)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def tensor(name: bytes, dims: tuple[int, ...], code: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, code, offset)


def file(keys: list[bytes], tensors: list[bytes], data: bytes = bytes(4096), version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(keys)) + b"".join(keys + tensors) + data


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (file([], [], version=1), "version 1"),
        (file([], [], version=3 << 24), "version"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, MAX_KEYS + 1), "key count"),
        (struct.pack("<4sIQQ", b"GGUF", 3, MAX_TENSORS + 1, 0), "tensor count"),
        (file([struct.pack("<Q", 2**63)], []), "a key"),
        (file([string(b"\xff\xfe") + struct.pack("<IB", 0, 1)], []), "a key: is not UTF-8"),
        (file([string(b"k\n") + struct.pack("<IB", 0, 1)], []), "a key: 'k\\n' is not printable"),
        (file([string(b"k") + struct.pack("<I", 13)], []), "k: value type 13"),
        (file([string(b"k") + struct.pack("<IIQ", 9, 9, 1)], []), "k: value type 9"),
        (file([string(b"k") + struct.pack("<IIQ", 9, 4, 2**62)], []), "k: needs"),
        (file([string(b"k") + struct.pack("<IIQ", 9, 8, 2**62)], []), "k: is cut off"),
        (file([string(b"k") + struct.pack("<IQ", 8, 2**64 - 1)], []), "k: is cut off"),
        (file([string(b"k") + struct.pack("<IB", 0, 1)] * 2, []), "k: is there twice"),
        (file([], [tensor(b"t", ())]), "tensor t: has 0 dimensions"),
        (file([], [tensor(b"t", (1,) * 5)]), "tensor t: has 5 dimensions"),
        (file([], [tensor(b"t", (0, 4))]), "tensor t: shape"),
        (file([], [tensor(b"t", (33,), code=3)]), "tensor t: shape"),
        (file([], [tensor(b"t", (8,), code=4)]), "tensor t: stored as type 4"),
        (file([], [tensor(b"t", (2**63, 2**63, 2**63))]), "tensor t: "),
        (file([], [tensor(b"t", (8,), offset=2**64 - 32)]), "tensor t: "),
        (file([], [tensor(b"t", (8,), offset=8)]), "tensor t: offset 8"),
        (file([], [tensor(b"t", (8,)), tensor(b"t", (8,), offset=32)]), "tensor t: is there twice"),
        (file([], [tensor(b"t", (16,)), tensor(b"u", (8,), offset=32)]), "tensor u: overlaps"),
    ],
)
def test_a_claim_that_does_not_fit_is_refused_by_name(data: bytes, named: str) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        read_header(data)
    assert named in str(caught.value)


def test_a_string_that_is_not_utf8_is_refused_when_it_is_read() -> None:
    metadata = read_header(file([string(b"k") + struct.pack("<I", 8) + string(b"\xff")], [])).metadata
    with pytest.raises(UnsupportedCheckpoint, match="k: is not UTF-8"):
        metadata["k"]


def test_every_scalar_type_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    values = {"u8": 200, "i8": -100, "u16": 60_000, "i16": -30_000, "u32": 2**32 - 1, "i32": -(2**31)}
    values |= {"u64": 2**64 - 1, "i64": -(2**63)}
    for name, value in values.items():
        kind = {"u": "uint", "i": "int"}[name[0]] + name[1:]
        getattr(writer, f"add_{kind}")(name, value)
    writer.add_float32("f32", 1e-5)
    writer.add_float64("f64", 1e-300)
    writer.add_bool("bool", True)
    writer.add_array("list", [1.5, 2.5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = dict(read_header((tmp_path / "x.gguf").read_bytes()).metadata)
    others = {"f32": 1e-5, "f64": 1e-300, "bool": True, "list": [1.5, 2.5], "general.architecture": "llama"}
    assert metadata == values | others
    assert metadata["bool"] is True
