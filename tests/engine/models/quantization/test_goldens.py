"""Checkpoints that other projects' code wrote, and what it reads in them: see `write_goldens.py`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.loader import load_model
from kernels.arrays import FLOAT32
from kernels.cpu.native_ops import computes_natively
from kernels.dispatch import select_ops
from kernels.reference_ops import ReferenceOps
from tests.support.host_logits import logits_of

GOLDENS = sorted(path.name for path in Path(__file__).with_name("data").iterdir())
goldens = pytest.mark.parametrize("name", GOLDENS)


def folder_of(name: str) -> Path:
    return Path(__file__).with_name("data") / name


def test_there_are_goldens() -> None:
    of_gptqmodel = {"gptq-sym", "gptq-asym", "gptq-v2-asym-desc-act", "gptq-8-bits", "awq"}
    of_compressed_tensors = {"w4a16", "w4a16-asym", "w8a16", "w8a8", "fp8", "fp8-dynamic", "fp8-block"}
    assert of_gptqmodel | of_compressed_tensors <= set(GOLDENS)


@goldens
def test_weights_are_those_that_the_writer_reads(name: str) -> None:
    """But for the rounding to bf16 that the writer's own expansion makes."""
    expected = load_file(folder_of(name) / "expected.safetensors")
    weights = dict(open_checkpoint(folder_of(name)).tensors(FLOAT32))
    sampled = [key for key in expected if key.endswith(".weight")]
    assert sampled
    for key in sampled:
        np.testing.assert_allclose(weights[key], expected[key], rtol=2**-8, atol=1e-7)


@goldens
def test_logits_are_those_of_transformers(name: str) -> None:
    expected = load_file(folder_of(name) / "expected.safetensors")
    checkpoint = open_checkpoint(folder_of(name))
    exact = logits_of(load_model(checkpoint, ReferenceOps(torch.device("cpu"), torch.float32), 64), expected["tokens"])
    error = np.linalg.norm(exact - expected["logits"]) / np.linalg.norm(expected["logits"])
    assert error < 0.01  # the writer's rounding to bf16
    if computes_natively():
        model = load_model(checkpoint, select_ops("bfloat16", threads=2, device="cpu"), 64)
        native = logits_of(model, expected["tokens"])
        most = 0.05 if name == "w8a8" else 0.02  # in int8 inputs are rounded, too
        assert np.linalg.norm(native - exact) / np.linalg.norm(exact) < most
