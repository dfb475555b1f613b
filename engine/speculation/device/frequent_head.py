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

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [R, V] from [R, H]."""
        ...


class FrequentDeviceHead:
    """The rows of the model's head for the tokens `token_ids` int64 [F]. The logits of all others are -inf, so sampling
    reads the whole vocabulary: the logits of a row are few compared with the weights of a head."""

    def __init__(self, model: Transformer, rows: Linear, token_ids: Tensor) -> None:
        self._model, self._rows, self._token_ids = model, rows, token_ids

    def logits(self, hidden: Tensor) -> Tensor:
        frequent = self._model.logits(hidden, self._rows)
        logits = frequent.new_full((len(hidden), self._model.config.vocab_size), -math.inf)
        return logits.index_copy_(1, self._token_ids, frequent)


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
