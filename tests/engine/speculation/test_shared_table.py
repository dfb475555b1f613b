"""A draft model that was made from its target uses the target's table of tokens, and gives its own back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.host_model import HostModel
from engine.models.loader import host_model, load_model
from engine.models.native_model import NativeModel
from engine.models.torch_model import TorchModel
from engine.speculation.shared_table import share_table
from kernels.arrays import Floats, int_array
from kernels.cpu.memory import WeightMemory
from kernels.cpu.native.library import load
from kernels.cpu.native_ops import NativeOps
from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import CpuProfile
from kernels.host import StepRows
from kernels.weights import ModelWeights
from tests.support.tiny_models import make_checkpoint

TIED = {"tie_word_embeddings": True, "num_hidden_layers": 1}


@pytest.fixture(params=["native", "onednn"])
def ops(request: pytest.FixtureRequest) -> NativeOps | CpuOps:
    if request.param == "native":
        if load() is None:
            pytest.skip("the native library is not built: make install, with a C++ compiler")
        return NativeOps(2)
    return CpuOps(CpuProfile(torch.bfloat16, threads=2, products=request.param, min_rows=1, probe_us={}))


def load_folder(folder: Path, ops: NativeOps | CpuOps) -> HostModel:
    return host_model(load_model(open_checkpoint(folder), ops, 64))


def weights_of(model: HostModel) -> ModelWeights[Any, Any, Any]:
    if isinstance(model, NativeModel):
        return model._weights
    assert isinstance(model, TorchModel)
    return model._transformer._weights


def logits(model: HostModel) -> Floats:
    rows = StepRows(int_array([[0]]), int_array([5]), int_array([5]))
    return model.logits(model.forward(np.arange(3, 8), rows, model.allocate_kv(1)))


@pytest.mark.parametrize("tied", [True, False])
def test_the_same_table_is_shared(tmp_path: Path, ops: NativeOps | CpuOps, tied: bool) -> None:
    folder = make_checkpoint(tmp_path / "model", "llama", **{**TIED, "tie_word_embeddings": tied})
    target, draft = load_folder(folder, ops), load_folder(folder, ops)
    before, head = logits(draft), weights_of(draft).head
    assert share_table(target, draft, open_checkpoint(folder))
    assert weights_of(draft).embedding is weights_of(target).embedding
    assert weights_of(draft).head is (weights_of(target).head if tied else head)
    assert np.array_equal(logits(draft), before)


def test_another_table_is_not(tmp_path: Path, ops: NativeOps | CpuOps) -> None:
    folder = make_checkpoint(tmp_path / "model", "llama", **TIED)
    others = [{"seed": 9, **TIED}, {**TIED, "tie_word_embeddings": False}, {**TIED, "vocab_size": 520}]
    for number, changes in enumerate(others):
        other = make_checkpoint(tmp_path / str(number), "llama", **changes)  # type: ignore[arg-type]
        target, draft = load_folder(folder, ops), load_folder(other, ops)
        own, before = weights_of(draft), logits(draft)
        assert not share_table(target, draft, open_checkpoint(other))
        assert weights_of(draft) is own
        assert np.array_equal(logits(draft), before)


def test_what_is_large_can_go_without_what_was_packed_beside_it() -> None:
    memory = WeightMemory()
    small, large, next_one = (memory.take(count).base for count in (64, 40 << 20, 64))
    assert small is next_one is not None
    assert large is not small
