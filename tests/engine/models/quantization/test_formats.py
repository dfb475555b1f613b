"""Every quantised format: its meaning as floats, its blocks, and the model that is made of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.checkpoints.checkpoint import open_checkpoint
from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.models.expansion import weight_memory
from engine.models.loader import load_model
from kernels.arrays import BFLOAT16, FLOAT32, Floats
from kernels.cpu import native
from kernels.cpu.native_ops import NativeOps, computes_natively
from kernels.dispatch import select_ops
from kernels.reference_ops import ReferenceOps
from tests.engine.models.quantization.folders import CASES, Case, write
from tests.support.host_logits import Expanded, logits_of
from tests.support.tiny_models import TinyFolder

SHAPE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64}
Made = Callable[[Case], tuple[Path, dict[str, Floats]]]

needs_kernels = pytest.mark.skipif(not computes_natively(), reason="products are not native here")
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="session")
def made(tiny_folder: TinyFolder, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The folder of a case, and the weights that it stands for."""
    written: dict[str, tuple[Path, dict[str, Floats]]] = {}

    def make(case: Case) -> tuple[Path, dict[str, Floats]]:
        if case.name not in written:
            folder = tmp_path_factory.mktemp("quantized") / case.name
            written[case.name] = folder, write(folder, tiny_folder("llama", **SHAPE), case)
        return written[case.name]

    return make


@cases
def test_weights_are_what_the_format_means(case: Case, made: Made) -> None:
    folder, expected = made(case)
    weights = dict(open_checkpoint(folder).tensors(FLOAT32))
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        assert weight.dtype == FLOAT32
        np.testing.assert_allclose(weight, expected[name], rtol=2e-7, atol=0, err_msg=name)


@cases
def test_size_and_formats_are_known_from_the_headers(case: Case, made: Made) -> None:
    folder, expected = made(case)
    checkpoint = HFCheckpoint(folder)
    plain = ("lm_head",) if not case.head else ()
    linear = {name for name in expected if name.endswith("_proj.weight") or name == "lm_head.weight"}
    linear -= {name for name in linear if any(part in name for part in (*plain, *case.plain))}
    assert checkpoint.quantized.keys() == linear
    assert {matrix.block_format for matrix in checkpoint.quantized.values()} == {case.block_format}
    file = folder / "model.safetensors"
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    assert checkpoint.weight_bytes == file.stat().st_size - header


@needs_kernels
@cases
def test_blocks_hold_the_same_numbers(case: Case, made: Made) -> None:
    folder, expected = made(case)
    checkpoint = HFCheckpoint(folder)
    if case.block_format is not None and not native.takes(case.block_format, 256):
        pytest.skip(f"no native product takes {case.block_format}")
    names = {name for name, matrix in checkpoint.quantized.items() if matrix.block_format is not None}
    assert bool(names) == (case.block_format is not None)
    ops = NativeOps(1)
    for name, weight in checkpoint.stored(names):
        assert native.takes(weight.format, weight.in_features)
        rows = ops.pack_parts([weight], None).rows(range(weight.out_features))
        np.testing.assert_allclose(rows, expected[name], rtol=2e-7, atol=0, err_msg=name)


@needs_kernels
@cases
def test_native_logits_are_near_those_of_the_floats(case: Case, made: Made) -> None:
    """No further from the exact logits than with weights rounded to bf16, within a part of what rounding activations
    costs."""
    if case.rounds:
        pytest.skip("inputs are rounded, too: test_rounded_inputs")
    checkpoint = open_checkpoint(made(case)[0])
    exact = logits_of(load_model(Expanded(checkpoint), ReferenceOps(torch.device("cpu"), torch.float32), 64))
    ops = select_ops("bfloat16", threads=2, device="cpu")
    rounded = np.linalg.norm(logits_of(load_model(Expanded(checkpoint), ops, 64)) - exact)
    assert np.linalg.norm(logits_of(load_model(checkpoint, ops, 64)) - exact) <= 1.5 * rounded
    assert rounded < 0.05 * np.linalg.norm(exact)


@cases
def test_the_memory_of_weights_is_stated(case: Case, made: Made) -> None:
    checkpoint = HFCheckpoint(made(case)[0])
    stored = sum(matrix.bytes for matrix in checkpoint.quantized.values())
    none = weight_memory(checkpoint, lambda format, inputs: False, 2)
    count = sum(weight.size for name, weight in checkpoint.tensors(BFLOAT16) if name in checkpoint.quantized)
    assert (none.kept, none.expanded, none.stored) == (0, 2 * count, stored)
    assert none.notice is not None
    assert (none.spared, none.saving) == (0, None)
    every = weight_memory(checkpoint, lambda format, inputs: True, 2)
    if case.block_format is None:
        assert every == none
    else:
        assert (every.kept, every.expanded, every.notice) == (stored, 0, None)
        assert every.total < none.total
        assert every.spared == none.total - every.total
        assert "computed with as stored" in str(every.saving)
