"""KV in fp8 with a checkpoint's scales of each layer: stored divided by them, and read times them, as the reference
defines."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.layout import BLOCK_TOKENS, MixedBlocks, block_numbers
from kernels.ops import AttentionPlan, HeadNorms, RopeRows
from kernels.reference_ops import ReferenceOps, ReferencePlan
from kernels.triton.ops import TritonOps
from kernels.weights import KVScales
from tests.engine.models.quantization.folders import CASES, write
from tests.kernels.triton.interpreter import round_to_fp8_as_a_gpu
from tests.kernels.triton.model_steps import loaded, logits_of
from tests.support.kernel_tensors import DEVICE
from tests.support.tiny_models import make_checkpoint

SHAPE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "num_hidden_layers": 2}
CASE = next(case for case in CASES if case.name == "pack-4-32-sym")
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
UNSCALED = KVScales(key=1.0, value=1.0)
Made = Callable[[Mapping[int, KVScales]], Path]


class Fp8Reference(ReferenceOps):
    """The reference with KV in fp8."""

    def allocate_kv(self, num_layers: int, num_blocks: int, num_kv_heads: int, head_dim: int) -> Tensor:
        shape = (num_layers, num_blocks, BLOCK_TOKENS, 2, num_kv_heads, head_dim)
        return torch.zeros(shape, dtype=torch.float8_e4m3fn, device=self.device)

    def allocate_mixed_kv(self, num_blocks: int, blocks: MixedBlocks) -> Tensor:
        shape = (1, num_blocks, blocks.starts(block_numbers)[1])
        return torch.zeros(shape, dtype=torch.float8_e4m3fn, device=self.device)

    def rotate_and_store(
        self,
        qkv: Tensor,
        norms: HeadNorms | None,
        rope: RopeRows,
        kv_layer: Tensor,
        slot_mapping: Tensor,
        scales: KVScales | None = None,
    ) -> Tensor:
        return reference.rotate_and_store(qkv, norms, rope, kv_layer, slot_mapping, scales or UNSCALED)

    def attend(
        self,
        query: Tensor,
        kv_layer: Tensor,
        plan: AttentionPlan,
        window: int | None,
        cap: float | None = None,
        sinks: Tensor | None = None,
        scales: KVScales | None = None,
        scale: float | None = None,
    ) -> Tensor:
        assert isinstance(plan, ReferencePlan)
        return reference.attend(query, kv_layer.float(), plan.metadata, window, cap, sinks, scales or UNSCALED, scale)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    source = make_checkpoint(tmp_path / "plain", "llama", **SHAPE)

    def make(scales: Mapping[int, KVScales]) -> Path:
        return with_scales(source, tmp_path / f"scales-{len(list(tmp_path.iterdir()))}", scales)

    return make


def with_scales(source: Path, folder: Path, scales: Mapping[int, KVScales]) -> Path:
    """A quantised copy with these scales of layers."""
    prefixes = {f"model.layers.{layer}.self_attn": of_layer for layer, of_layer in scales.items()}
    extra = {f"{prefix}.k_scale": np.array([each.key], np.float32) for prefix, each in prefixes.items()}
    extra |= {f"{prefix}.v_scale": np.array([each.value], np.float32) for prefix, each in prefixes.items()}
    write(folder, source, replace(CASE, config={**CASE.config, "kv_cache_scheme": SCHEME}, extra=extra))
    return folder


@pytest.fixture(autouse=True)
def _fp8_as_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    round_to_fp8_as_a_gpu(monkeypatch)


@pytest.mark.parametrize(
    "scales",
    [
        {0: KVScales(0.05, 0.02), 1: KVScales(0.01, 0.004)},
        {1: KVScales(1e-4, 2e-4)},  # larger numbers are cut off
        {0: KVScales(40.0, 40.0)},  # few numbers are left
    ],
    ids=["fine", "saturated", "coarse"],
)
def test_logits_are_those_of_the_reference(scales: Mapping[int, KVScales], made: Made) -> None:
    folder = made(scales)
    actual = logits_of(loaded(folder, TritonOps(DEVICE, torch.float32, UNSCALED)))
    expected = logits_of(loaded(folder, Fp8Reference(DEVICE, torch.float32)))
    plain = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    moved = (expected - plain).norm()
    assert moved > 1e-3 * plain.norm()
    # A number between two codes may be stored as either: by far less than the scales matter.
    assert (actual - expected).norm() < 0.3 * moved


def test_layers_without_scales_have_those_of_the_table(made: Made) -> None:
    scales = KVScales(0.25, 0.125)
    by_table = logits_of(loaded(made({}), TritonOps(DEVICE, torch.float32, scales)))
    by_layer = logits_of(loaded(made({0: scales, 1: scales}), TritonOps(DEVICE, torch.float32, UNSCALED)))
    assert torch.equal(by_table, by_layer)


def test_kv_in_the_models_dtype_has_none(made: Made) -> None:
    scales = {layer: KVScales(1e-4, 1e-4) for layer in (0, 1)}
    scaled, without = (logits_of(loaded(made(each), TritonOps(DEVICE, torch.float32))) for each in (scales, {}))
    assert torch.equal(scaled, without)


def test_layers_that_share_kv_read_it_by_the_scales_of_its_layer(tmp_path: Path) -> None:
    """Of layers with heads of their own in one pool. Scales of a layer without keys and values mean nothing."""
    source = make_checkpoint(tmp_path / "plain", "gemma4_shared", hidden_size_per_layer_input=32)
    scales = {layer: KVScales(0.01 * (layer + 1), 0.03 * (layer + 1)) for layer in range(3)}
    cases = {"own": {}, "repeated": {3: scales[1], 4: scales[2]}, "idle": {4: KVScales(7.0, 9.0)}}
    folders = {name: with_scales(source, tmp_path / name, scales | others) for name, others in cases.items()}
    expected, *others = (logits_of(loaded(folder, Fp8Reference(DEVICE, torch.float32))) for folder in folders.values())
    assert all(torch.equal(other, expected) for other in others)
    actual = logits_of(loaded(folders["idle"], TritonOps(DEVICE, torch.float32, UNSCALED)))
    plain = logits_of(loaded(folders["own"], ReferenceOps(DEVICE, torch.float32)))
    assert (actual - expected).norm() < 0.3 * (expected - plain).norm()
