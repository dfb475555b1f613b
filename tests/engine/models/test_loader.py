"""Loading puts every weight where the ops compute, and refuses models that these do not compute."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
import torch

from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.loader import load_model
from kernels.reference_ops import ReferenceEmbedding, ReferenceLinear, ReferenceOps
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint


def tensors_of(value: object) -> Iterator[torch.Tensor]:
    """All tensors in weights, however deep."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (ReferenceLinear, ReferenceEmbedding)):
        yield from tensors_of(list(vars(value).values()))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_of(each)
    elif is_dataclass(value):
        yield from tensors_of([getattr(value, field.name) for field in fields(value)])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])  # plain, with biases and tied, with norms of heads
def test_weights_and_rope_lie_on_the_device_of_the_ops(family: TinyFamily, tmp_path: Path) -> None:
    device = torch.device("meta")  # a device like any other, and on every machine
    checkpoint = open_checkpoint(make_checkpoint(tmp_path / "model", family))
    model = load_model(checkpoint, ReferenceOps(device, torch.float32), 64)
    weights = list(tensors_of(model._weights))
    assert len(weights) > 10
    places = torch.empty(3, dtype=torch.int64, device=device)
    ropes = [factors.rows(places) for factors in model._ropes.values()]
    assert {tensor.device for tensor in (*weights, *(rope.cos for rope in ropes))} == {device}
