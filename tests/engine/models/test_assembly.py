"""A distilled model is taken apart and put together again, to the bit, with its own teacher only."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from engine.catalog import catalog
from engine.catalog.assembly import assemble, pack
from engine.catalog.catalog import FetchError, available, fetch
from engine.catalog.shipped import Part, read_part, sha256
from engine.checkpoints.checkpoint import open_checkpoint
from engine.checkpoints.huggingface.writer import write_folder
from engine.models.config import UnsupportedCheckpoint
from engine.models.layout import EMBEDDING
from engine.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from kernels.arrays import BFLOAT16, FLOAT32
from tests.engine.models.tiny_gguf import make_gguf
from tests.support.tiny_models import make_checkpoint

LAYERS = (0, 2)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    made = make_checkpoint(folder / "hf", "llama", num_hidden_layers=3, tie_word_embeddings=True)
    return make_gguf(folder / "teacher.gguf", made)


@pytest.fixture(scope="module")
def student(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the teacher's layers, changed as training would."""
    checkpoint = open_checkpoint(teacher)
    weights = {}
    for name, tensor in checkpoint.tensors(BFLOAT16):
        for index, layer in enumerate(LAYERS):
            if name.startswith(f"model.layers.{layer}."):
                weights[name.replace(f".{layer}.", f".{index}.", 1)] = tensor * BFLOAT16.type(1.5)
    weights |= {name: tensor for name, tensor in checkpoint.tensors(BFLOAT16) if ".layers." not in name}
    folder = tmp_path_factory.mktemp("student")
    write_folder(folder, checkpoint, checkpoint.config.of_layers(LAYERS), weights, np.array([9, 7]))
    return folder


@pytest.fixture
def part(student: Path, teacher: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "shipped" / "tiny-small"
    pack(student, teacher, folder, name="tiny", layers=LAYERS, description="Small", license="none")
    return folder


def read(part: Path) -> Part:
    read = read_part(part)
    assert read is not None
    return read


def test_what_comes_out_is_the_student_to_seven_bits(part: Path, student: Path, teacher: Path, tmp_path: Path) -> None:
    assemble(part, teacher, tmp_path / "whole")
    original, whole = (load_file(folder / "model.safetensors") for folder in (student, tmp_path / "whole"))
    assert original.keys() == whole.keys()
    assert np.array_equal(original[EMBEDDING], whole[EMBEDDING])
    for name, tensor in original.items():
        wide = tensor.astype(FLOAT32)
        step = np.abs(wide).max(-1, keepdims=True) / 127
        assert (np.abs(wide - whole[name].astype(FLOAT32)) <= 0.51 * step + 0.004 * np.abs(wide)).all(), name
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "draft.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (student / name).read_bytes(), name


def test_a_part_has_nothing_of_the_teachers(part: Path) -> None:
    assert sorted(each.name for each in part.iterdir()) == ["draft.safetensors", "layers.safetensors", "part.json"]
    stored = load_file(part / "layers.safetensors")
    assert EMBEDDING not in stored
    assert {tensor.dtype for name, tensor in stored.items() if "proj.weight" in name and "scale" not in name} == {
        np.dtype(np.int8)
    }


def test_the_same_files_give_the_same_bytes(part: Path, teacher: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        assemble(part, teacher, tmp_path / folder)
        assert sha256(tmp_path / folder / "model.safetensors") == read(part).weights_sha256


def test_another_teacher_is_refused(part: Path, teacher: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(teacher.read_bytes() + b"\0")
    with pytest.raises(UnsupportedCheckpoint, match="is not the file of tiny that tiny-small was made from"):
        assemble(part, other, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_no_torch_is_needed(part: Path, teacher: Path, tmp_path: Path) -> None:
    """The first start of all assembles in the process that serves."""
    program = """
import sys
from pathlib import Path
from engine.catalog.assembly import assemble
assemble(*(Path(path) for path in sys.argv[1:]))
assert "torch" not in sys.modules, "torch came in"
"""
    subprocess.run([sys.executable, "-c", program, part, teacher, tmp_path / "whole"], check=True, cwd=ROOT)


PREFERRED = SamplingDefaults(temperature=0.3)


class TestCatalog:
    @pytest.fixture(autouse=True)
    def shipped(self, part: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """A catalogue of a teacher that is there and of its small one."""
        models_dir = tmp_path / "models"
        models_dir.mkdir()
        (models_dir / "tiny.gguf").write_bytes(teacher.read_bytes())
        source = catalog._Source("A file", "none", "tiny==1", "tiny/tiny.gguf", 1, sha256(teacher), 1, PREFERRED)
        monkeypatch.setattr(catalog, "_SOURCES", {"tiny": source})
        monkeypatch.setattr(catalog, "_PARTS", ("tiny-small",))
        monkeypatch.setattr(catalog, "_SHIPPED", part.parent)
        return models_dir

    def test_a_part_becomes_a_folder_once(self, shipped: Path) -> None:
        before = available(shipped)[-1]
        assert (before.name, before.fetched, before.license) == ("tiny-small", False, "none")
        path = fetch("tiny-small", shipped)
        assert open_checkpoint(path).config.num_layers == 2
        assert catalog.catalogue_defaults(path) == PREFERRED, "its teacher's"
        assert catalog.catalogue_defaults(path.parent) == NO_DEFAULTS
        after = available(shipped)[-1]
        assert (after.fetched, after.path) == (True, path)
        made = (path / "model.safetensors").stat().st_mtime_ns
        assert fetch("tiny-small", shipped) == path
        assert (path / "model.safetensors").stat().st_mtime_ns == made
        assert {each.name for each in shipped.iterdir()} == {"tiny.gguf", path.name}

    def test_a_folder_that_was_changed_is_refused(self, shipped: Path) -> None:
        path = fetch("tiny-small", shipped)
        (path / "model.safetensors").write_bytes(b"")
        with pytest.raises(FetchError, match="is not the folder that tiny-small names: remove it"):
            fetch("tiny-small", shipped)

    def test_a_damaged_part_leaves_nothing(self, shipped: Path, part: Path) -> None:
        manifest = json.loads((part / "part.json").read_text())
        (part / "part.json").write_text(json.dumps(manifest | {"weights_sha256": "00" * 32}))
        with pytest.raises(FetchError, match="is damaged"):
            fetch("tiny-small", shipped)
        assert [each.name for each in shipped.iterdir()] == ["tiny.gguf"]

    def test_an_installation_without_the_part_does_not_know_the_name(
        self, shipped: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(catalog, "_SHIPPED", tmp_path / "nowhere")
        assert [entry.name for entry in available(shipped)] == ["tiny"]
        with pytest.raises(FetchError, match="no model is called 'tiny-small'; known: tiny"):
            fetch("tiny-small", shipped)
