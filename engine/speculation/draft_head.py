"""What a draft is drawn from: the whole vocabulary, or the tokens that are likely to be drafted at all.

The head over the vocabulary is half of what a small model's step costs, and nearly all text is made of a few thousand
tokens (FR-Spec, arXiv 2502.14856). A draft that cannot be drawn is one that would not have come true; the answer is
still drawn from all tokens.
"""

from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.models.checkpoint import WeightSource
from engine.models.config import UnsupportedCheckpoint
from engine.models.hf_writer import DRAFT, FREQUENT_TOKENS
from engine.models.layout import EMBEDDING, HEAD
from engine.models.transformer import Transformer
from kernels.ops import Linear, LogitEdits, Ops, SamplingColumns


class DraftHead(Protocol):
    """Draws drafts from the draft model's hidden states."""

    def draw(self, hidden: Tensor, edits: LogitEdits | None, columns: SamplingColumns) -> Tensor:
        """Token ids int64 [R] from [R, H]. `edits` are by token id."""
        ...


class WholeHead:
    """The model's own head."""

    def __init__(self, model: Transformer) -> None:
        self._model = model

    def draw(self, hidden: Tensor, edits: LogitEdits | None, columns: SamplingColumns) -> Tensor:
        logits = self._model.logits(hidden)
        if edits is not None:
            self._model.ops.edit_logits(logits, edits)
        return self._model.ops.sample(logits, columns)


class FrequentHead:
    """The head's rows of some tokens. `token_ids` int64 [F], ascending; `rows` gives their logits [R, F]."""

    def __init__(self, ops: Ops, rows: Linear, token_ids: Tensor) -> None:
        self._ops, self._rows, self._token_ids = ops, rows, token_ids

    def draw(self, hidden: Tensor, edits: LogitEdits | None, columns: SamplingColumns) -> Tensor:
        logits = self._rows.wide(hidden)
        if edits is not None:
            self._ops.edit_logits(logits, self._on_columns(edits))
        return self._ops.sample_among(logits, self._token_ids, columns)

    def _on_columns(self, edits: LogitEdits) -> LogitEdits:
        """The same by column, without those of tokens that are not here."""
        repeated, repeat_columns = self._columns_of(edits.repeat_tokens)
        added, add_columns = self._columns_of(edits.add_tokens)
        return LogitEdits(
            edits.repeat_rows[repeated],
            repeat_columns,
            edits.repeat_penalties[repeated],
            edits.add_rows[added],
            add_columns,
            edits.add_values[added],
        )

    def _columns_of(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which of some tokens are here, bool [E], and the columns of those."""
        columns = torch.searchsorted(self._token_ids, token_ids).clamp_(max=len(self._token_ids) - 1)
        here = self._token_ids[columns] == token_ids
        return here, columns[here]


def make_head(model: Transformer, checkpoint: WeightSource, path: Path) -> DraftHead:
    """The head for drafting with a model of the checkpoint at `path`, a folder that may name its frequent tokens.

    Raises:
        UnsupportedCheckpoint: what it names cannot be used.
    """
    token_ids = read_frequent_tokens(path, model.config.vocab_size)
    if token_ids is None:
        return WholeHead(model)
    ops = model.ops
    name = EMBEDDING if model.config.tie_embeddings else HEAD
    with torch.inference_mode():
        rows = next(tensor for each, tensor in checkpoint.tensors(ops.dtype) if each == name)[token_ids]
        return FrequentHead(ops, ops.pack_linear(rows.to(ops.device), None), token_ids.to(ops.device))


def read_frequent_tokens(path: Path, vocab_size: int) -> Tensor | None:
    """int64 [F], ascending, from the folder's `draft.safetensors`; None where there is none.

    Raises:
        UnsupportedCheckpoint: it is not a file of that kind, or not a list of tokens of the vocabulary.
    """
    file = path / DRAFT
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as handle:
            token_ids: Tensor = handle.get_tensor(FREQUENT_TOKENS)
    except (OSError, SafetensorError) as error:
        raise UnsupportedCheckpoint(f"{file}: cannot be read ({error})") from error
    if token_ids.dtype != torch.int32 or token_ids.dim() != 1 or not len(token_ids):
        raise UnsupportedCheckpoint(f"{file}: {FREQUENT_TOKENS} is not a list of int32")
    token_ids = torch.unique(token_ids.long())
    if token_ids[0] < 0 or token_ids[-1] >= vocab_size:
        raise UnsupportedCheckpoint(f"{file}: {FREQUENT_TOKENS} has tokens outside the vocabulary of {vocab_size}")
    return token_ids
