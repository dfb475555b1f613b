"""Gemma 4 in all its forms on a GPU equals the same models in plain torch."""

from pathlib import Path

import pytest
import torch

from kernels.reference_ops import ReferenceOps
from kernels.triton.ops import TritonOps
from tests.kernels.triton.model_steps import loaded, logits_of
from tests.support.kernel_tensors import DEVICE
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint


@pytest.mark.parametrize("family", ["gemma4", "gemma4_moe", "gemma4_shared"])
def test_logits_are_equal(family: TinyFamily, tmp_path: Path) -> None:
    """Layers with heads of their own, and keys as values, in one pool; experts with norms of their own; shared KV and
    embeddings for each layer."""
    folder = make_checkpoint(tmp_path / family, family)
    model = loaded(folder, TritonOps(DEVICE, torch.float32))
    expected = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    torch.testing.assert_close(logits_of(model), expected, atol=1e-4, rtol=1e-4)
