"""Models with latent attention on a GPU equal the same models in plain torch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.reference_ops import ReferenceOps
from kernels.triton.by_head import HeadLinears
from kernels.triton.ops import TritonOps
from kernels.weights import LatentWeights
from tests.kernels.triton.model_steps import loaded, logits_of
from tests.support.kernel_tensors import DEVICE
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint

DENSE: dict[str, Any] = {"num_hidden_layers": 1, "first_k_dense_replace": 1}
SPARSE: dict[str, Any] = {"num_hidden_layers": 2, "first_k_dense_replace": 1}
CASES: list[tuple[TinyFamily, dict[str, Any], torch.dtype, float]] = [
    ("deepseek_v2", SPARSE, torch.float32, 1e-4),  # queries have a latent of their own
    ("deepseek_v2_lite", SPARSE, torch.float32, 1e-4),  # and have none
    ("deepseek_v3", SPARSE, torch.float32, 1e-4),  # with biases
    ("deepseek_v3", DENSE, torch.bfloat16, 1e-1),
    ("glm4_moe_lite", {"num_hidden_layers": 2, "mlp_layer_types": ["dense", "sparse"]}, torch.float32, 1e-4),
    ("glm4_moe_lite", {"num_hidden_layers": 1, "mlp_layer_types": ["dense"]}, torch.float16, 2e-2),
]


@pytest.mark.parametrize(("family", "changes", "dtype", "tolerance"), CASES, ids=lambda case: str(case)[:16])
def test_logits_are_equal(
    family: TinyFamily, changes: dict[str, Any], dtype: torch.dtype, tolerance: float, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / family, family, **changes)
    model = loaded(folder, TritonOps(DEVICE, dtype))
    latent = model._weights.layers[0].qkv
    assert isinstance(latent, LatentWeights)
    assert isinstance(latent.of_queries, HeadLinears)
    expected = logits_of(loaded(folder, ReferenceOps(DEVICE, dtype)))
    torch.testing.assert_close(logits_of(model), expected, atol=tolerance, rtol=tolerance)


def test_the_memory_of_a_token(tmp_path: Path) -> None:
    """Rank and rotated dimensions, once for all heads."""
    model = loaded(make_checkpoint(tmp_path / "model", "deepseek_v2", **DENSE), TritonOps(DEVICE, torch.bfloat16))
    assert model.allocate_kv(5).nbytes == 5 * 16 * (24 + 8) * 2
