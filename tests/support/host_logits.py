"""Logits of a loaded model on the CPU, and a source that gives numbers alone."""

from collections.abc import Iterator

import numpy as np

from engine.models.loader import host_model
from engine.models.native_model import NativeModel
from engine.models.sources import WeightSource
from engine.models.transformer import Transformer
from kernels.arrays import Array, Dtype, Floats, Ints
from kernels.delta import StateRows
from kernels.host import StepRows

TOKENS: Ints = np.array([3, 1, 4, 1, 5, 9, 2, 6])


class Expanded:
    """A checkpoint's weights as numbers alone."""

    def __init__(self, source: WeightSource) -> None:
        self.config, self.weight_bytes = source.config, source.weight_bytes
        self._source = source

    def tensors(self, dtype: Dtype) -> Iterator[tuple[str, Array]]:
        return self._source.tensors(dtype)


def logits_of(model: NativeModel | Transformer, tokens: Ints = TOKENS) -> Floats:
    """float32 [T, V] of a sequence of its own."""
    host, count = host_model(model), np.array([len(tokens)])
    zero = np.zeros(1, np.int64)
    saves = np.zeros((0, 3), np.int64)
    states = StateRows(host.allocate_states(1), zero, zero, saves) if model.config.linear is not None else None
    rows = StepRows(np.array([[0]]), count, count, states)
    return host.logits(host.forward(tokens, rows, host.allocate_kv(1)))
