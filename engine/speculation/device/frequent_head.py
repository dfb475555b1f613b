"""The output head of a draft model on a device: see `engine.speculation.draft_head`."""

import math
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from engine.models.layout import EMBEDDING, HEAD
from engine.models.sources import WeightSource
from engine.models.transformer import Transformer
from engine.speculation.draft_head import read_frequent_tokens
from kernels.exchange import numpy_dtype, tensor_of
from kernels.ops import Linear


class DeviceHead(Protocol):
    """Logits of drafts from the draft model's hidden states."""

    @property
    def logits_dtype(self) -> torch.dtype: ...

    def logits(self, hidden: Tensor, *, into: Tensor | None = None) -> Tensor:
        """[R, V] from [R, H]. `into`: the memory of the result, in `logits_dtype`."""
        ...


class FrequentDeviceHead:
    """The rows of the model's head for the tokens `token_ids` int64 [F]. The logits of all others are -inf, so sampling
    reads the whole vocabulary: the logits of a row are few compared with the weights of a head."""

    def __init__(self, model: Transformer, rows: Linear, token_ids: Tensor) -> None:
        self._model, self._rows, self._token_ids = model, rows, token_ids

    @property
    def logits_dtype(self) -> torch.dtype:
        return self._model.logits_dtype

    def logits(self, hidden: Tensor, *, into: Tensor | None = None) -> Tensor:
        frequent = self._model.logits(hidden, self._rows).to(self.logits_dtype)
        if into is None:
            into = frequent.new_empty((len(hidden), self._model.config.vocab_size))
        return into.fill_(-math.inf).index_copy_(1, self._token_ids, frequent)


@torch.inference_mode()
def make_device_head(model: Transformer, checkpoint: WeightSource, path: Path) -> DeviceHead:
    """The draft head of a model from the checkpoint folder at `path`, which may list frequent tokens.

    Raises:
        UnsupportedCheckpoint: the list is invalid.
    """
    token_ids = read_frequent_tokens(path, model.config.vocab_size)
    if token_ids is None:
        return model
    ops = model.ops
    name = EMBEDDING if model.config.tie_embeddings else HEAD
    rows = next(array for key, array in checkpoint.tensors(numpy_dtype(ops.dtype)) if key == name)[token_ids]
    return FrequentDeviceHead(model, ops.pack_linear(tensor_of(rows), None), tensor_of(token_ids).to(ops.device))
