"""Matrices in blocks go to a backend that computes with them as they are stored; others get numbers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as BlockType
from safetensors.numpy import load_file

from engine.checkpoints.checkpoint import open_checkpoint
from engine.checkpoints.gguf.file import GGUFCheckpoint
from engine.config import Quantize
from engine.models.config import UnsupportedCheckpoint
from engine.models.loader import load_model
from kernels.arrays import Array
from kernels.cpu import native
from kernels.dispatch import select_ops
from kernels.exchange import numpy_dtype
from kernels.ops import Embedding, Linear
from kernels.reference_ops import ReferenceOps
from kernels.weights import DENSE, StoredWeight
from tests.engine.models.tiny_gguf import make_gguf
from tests.support.host_logits import Expanded, logits_of
from tests.support.tiny_models import TinyFolder

WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512}
"""A model whose rows fill K-quants' blocks."""


class BlockOps(ReferenceOps):
    """Computes with the blocks of some formats, by expanding them as the format's own package does."""

    def __init__(self, *formats: str, multiple: int = 32, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(torch.device("cpu"), dtype)
        self.formats, self.multiple = formats, multiple
        self.packed: list[StoredWeight] = []

    def takes_blocks(self, format: str, in_features: int) -> bool:
        return format in self.formats and in_features % self.multiple == 0

    def pack_parts(self, parts: Sequence[StoredWeight], bias: Array | None) -> Linear:
        return super().pack_parts([self._dense(part) for part in parts], bias)

    def pack_embedding(self, weight: StoredWeight) -> Embedding:
        return super().pack_embedding(self._dense(weight))

    def _dense(self, part: StoredWeight) -> StoredWeight:
        self.packed.append(part)
        if part.rows.dtype != np.uint8:
            assert part.rows.shape == (part.out_features, part.in_features)
            return replace(part, format=DENSE)
        assert part.format in self.formats
        numbers = gguf.quants.dequantize(part.rows, BlockType[part.format.upper()])
        dense = StoredWeight.dense(numbers.astype(numpy_dtype(self.dtype)))
        assert (dense.out_features, dense.in_features) == (part.out_features, part.in_features)
        return dense

    @property
    def packed_formats(self) -> list[str]:
        return sorted({part.format for part in self.packed})


def mixed(path: Path, folder: Path, **formats: BlockType) -> Path:
    """The tiny model in Q4_0, with tensors whose GGUF name has some text in it in other formats."""
    plain = make_gguf(path.with_suffix(".plain"), folder, BlockType.F32)
    reader = gguf.GGUFReader(plain)
    writer = gguf.GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            sub = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub)
    for tensor in reader.tensors:
        numbers = np.asarray(tensor.data, np.float32)
        kind = BlockType.F32
        if numbers.ndim == 2:
            kind = next((formats[part] for part in formats if part in tensor.name), BlockType.Q4_0)
        writer.add_tensor(tensor.name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])  # rows in another order, tied, neither
@pytest.mark.parametrize("kind", [BlockType.Q4_0, BlockType.Q4_1, BlockType.Q8_0])
def test_native_blocks_are_not_expanded(family: str, kind: BlockType, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "tiny.gguf", tiny_folder(family, **WIDE), kind)
    ops = BlockOps(kind.name.lower())
    model = load_model(GGUFCheckpoint(path), ops, 64)
    assert ops.packed_formats == [kind.name.lower()]
    expanded = load_model(Expanded(GGUFCheckpoint(path)), ReferenceOps(ops.device, ops.dtype), 64)
    assert np.array_equal(logits_of(model), logits_of(expanded))


def test_types_that_are_mixed_in_one_product_are_its_parts(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf", tiny_folder("llama", **WIDE), attn_v=BlockType.Q8_0, ffn_up=BlockType.Q5_0)
    ops = BlockOps("q4_0", "q8_0")
    model = load_model(GGUFCheckpoint(path), ops, 64)
    assert ops.packed_formats == ["dense", "q4_0", "q8_0"]  # no backend takes q5_0
    formats = [part.format for part in ops.packed]
    assert formats.count("q8_0") == formats.count("dense") == model.config.num_layers
    expanded = load_model(Expanded(GGUFCheckpoint(path)), ReferenceOps(ops.device, ops.dtype), 64)
    assert np.array_equal(logits_of(model), logits_of(expanded))


def test_only_what_is_expanded_is_kept_for_the_next_start(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf", tiny_folder("llama", **WIDE), ffn_up=BlockType.Q5_0)
    cache = tmp_path / "cache"
    takes_all, takes_some = BlockOps("q4_0", "q5_0"), BlockOps("q4_0")
    whole = logits_of(load_model(open_checkpoint(path, cache), takes_all, 64))
    assert not cache.exists()
    for _ in range(2):
        assert np.array_equal(logits_of(load_model(open_checkpoint(path, cache), takes_some, 64)), whole)
    (file,) = cache.iterdir()
    kept = {name for name, tensor in load_file(file).items() if tensor.ndim == 2}
    assert kept == {f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(2)}
    assert np.array_equal(logits_of(load_model(open_checkpoint(path, cache), BlockOps(), 64)), whole)


@pytest.mark.parametrize("tied", [False, True])
def test_matrices_are_quantised_and_vectors_stay(tied: bool, tiny_folder: TinyFolder) -> None:
    folder = tiny_folder("qwen2" if tied else "llama", **WIDE)
    ops = BlockOps("int8")
    source = open_checkpoint(folder)
    model = load_model(source, ops, 64, quantize="int8")
    assert ops.packed_formats == ["int8"]
    assert len(ops.packed) == 7 * source.config.num_layers + (1 if tied else 2)
    plain = load_model(source, ReferenceOps(ops.device, ops.dtype), 64)
    assert np.array_equal(logits_of(model), logits_of(plain))  # which this table does not round


def test_blocks_stay_what_they_are_where_the_rest_is_quantised(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf", tiny_folder("llama", **WIDE), token_embd=BlockType.F32, output=BlockType.BF16)
    ops = BlockOps("int4", "int8", "q4_0")
    load_model(GGUFCheckpoint(path), ops, 64, quantize="int4")
    assert ops.packed_formats == ["int4", "int8", "q4_0"]


def test_int4_leaves_the_embedding_and_the_head_int8(tiny_folder: TinyFolder) -> None:
    ops = BlockOps("int4", "int8")
    load_model(open_checkpoint(tiny_folder("llama", **WIDE, vocab_size=768)), ops, 64, quantize="int4")
    tables = [part.format for part in ops.packed if part.out_features == 768]
    layers = {part.format for part in ops.packed if part.out_features != 768}
    assert (tables, layers) == (["int8", "int8"], {"int4"})


def test_a_backend_without_such_products_refuses(tiny_folder: TinyFolder) -> None:
    ops = ReferenceOps(torch.device("cpu"), torch.float32)
    with pytest.raises(
        UnsupportedCheckpoint, match="quantize int8 needs a GPU, or the native kernels of the CPU in bfloat16"
    ):
        load_model(open_checkpoint(tiny_folder("llama")), ops, 64, quantize="int8")


def test_a_width_that_no_group_divides_is_refused(tiny_folder: TinyFolder) -> None:
    checkpoint = open_checkpoint(tiny_folder("llama"))
    ops = BlockOps("int4", multiple=4096)
    with pytest.raises(UnsupportedCheckpoint, match=r"quantize int4 does not divide this model's matrices of \d+ inp"):
        load_model(checkpoint, ops, 64, quantize="int4")


@pytest.mark.skipif(native.level() is None, reason="the native library is not built")
@pytest.mark.parametrize("kind", [BlockType.Q4_0, BlockType.Q4_1, BlockType.Q8_0])
def test_native_products_with_blocks_are_exact(kind: BlockType, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    checkpoint = GGUFCheckpoint(make_gguf(tmp_path / "tiny.gguf", tiny_folder("llama", **WIDE), kind))
    ops = select_ops("bfloat16", threads=2, device="cpu")
    if not ops.takes_blocks(kind.name.lower(), WIDE["hidden_size"]):
        pytest.skip("products are not native here")
    exact = logits_of(load_model(Expanded(checkpoint), ReferenceOps(torch.device("cpu"), torch.float32), 64))
    blocks = logits_of(load_model(checkpoint, ops, 64))
    expanded = logits_of(load_model(Expanded(checkpoint), ops, 64))
    # No further from the exact numbers than bf16 weights are, within a part of what rounding activations costs.
    assert np.linalg.norm(blocks - exact) <= 1.5 * np.linalg.norm(expanded - exact)


@pytest.mark.skipif(native.level() is None, reason="the native library is not built")
@pytest.mark.parametrize(("quantize", "most_error"), [("int8", 0.03), ("int4", 0.25)])
def test_native_quantised_products_are_close(quantize: Quantize, most_error: float, tiny_folder: TinyFolder) -> None:
    checkpoint = open_checkpoint(tiny_folder("llama", **WIDE))
    ops = select_ops("bfloat16", threads=2, device="cpu")
    if not ops.takes_blocks(quantize, WIDE["hidden_size"]):
        pytest.skip("products are not native here")
    exact = logits_of(load_model(checkpoint, ReferenceOps(torch.device("cpu"), torch.float32), 64))
    quantised = logits_of(load_model(checkpoint, ops, 64, quantize=quantize))
    assert 0 < np.linalg.norm(quantised - exact) / np.linalg.norm(exact) < most_error
