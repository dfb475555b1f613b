"""Gemma 4 in all its forms on a GPU equals the same models in plain torch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.reference_ops import ReferenceOps
from kernels.triton.ops import TritonOps
from kernels.weights import KVScales
from tests.kernels.triton.interpreter import round_to_fp8_as_a_gpu
from tests.kernels.triton.model_steps import loaded, logits_of
from tests.support.kernel_tensors import DEVICE
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint

TWO_LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
PUBLISHED_HEADS: dict[str, Any] = {"head_dim": 256, "global_head_dim": 512, "num_attention_heads": 2} | {
    "num_key_value_heads": 2
}
CASES: list[tuple[TinyFamily, dict[str, Any]]] = [("gemma4", {}), ("gemma4_moe", TWO_LAYERS), ("gemma4_shared", {})]


@pytest.mark.parametrize(("family", "shape"), CASES)
def test_logits_are_equal(family: TinyFamily, shape: dict[str, Any], tmp_path: Path) -> None:
    """Layers with heads of their own, and keys as values, in one pool; experts with norms of their own; shared KV and
    embeddings for each layer."""
    folder = make_checkpoint(tmp_path / family, family, **shape)
    model = loaded(folder, TritonOps(DEVICE, torch.float32))
    expected = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    torch.testing.assert_close(logits_of(model), expected, atol=1e-4, rtol=1e-4)


def test_heads_of_the_published_sizes_in_bfloat16(tmp_path: Path) -> None:
    """Logits are hardly further from those in float32 than plain torch's are."""
    folder = make_checkpoint(tmp_path / "gemma4", "gemma4", **TWO_LAYERS, **PUBLISHED_HEADS)
    truth = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    ours, theirs = (logits_of(loaded(folder, ops(DEVICE, torch.bfloat16))) for ops in (TritonOps, ReferenceOps))
    assert (ours - truth).norm(dim=1).max() < 1.5 * (theirs - truth).norm(dim=1).max() < 0.15 * truth.norm(dim=1).min()


def test_a_pool_in_fp8_has_the_bytes_of_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values keep four bits of their fraction: logits move, by far less than they differ among themselves."""
    round_to_fp8_as_a_gpu(monkeypatch)
    folder = make_checkpoint(tmp_path / "gemma4", "gemma4", **TWO_LAYERS)
    coarse = loaded(folder, TritonOps(DEVICE, torch.float32, KVScales(key=0.05, value=0.05)))
    plain = loaded(folder, ReferenceOps(DEVICE, torch.float32))
    assert plain.allocate_kv(3).nbytes == 4 * coarse.allocate_kv(3).nbytes
    expected = logits_of(plain)
    moved = float((logits_of(coarse) - expected).square().mean().sqrt() / expected.std())
    assert 1e-3 < moved < 0.2
