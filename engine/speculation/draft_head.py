"""The output head of the draft model: over the whole vocabulary, or over its frequent tokens only.

The full head is half of a small model's step time, and nearly all text consists of a few thousand tokens (FR-Spec: Zhao
et al. 2025, arXiv 2502.14856). A token that cannot be drafted only costs a rejected draft; the target samples from the
whole vocabulary.
"""

from pathlib import Path
from typing import Protocol

import numpy as np
from safetensors import SafetensorError, safe_open

from engine.execution.changes import LogitChanges
from engine.models.config import UnsupportedCheckpoint
from engine.models.host_model import HostModel
from engine.models.layout import DRAFT, EMBEDDING, FREQUENT_TOKENS, HEAD
from engine.models.sources import WeightSource
from kernels.arrays import Array, Ints, Words
from kernels.host import HostColumns, HostEdits, HostOps, HostProduct


class DraftHead(Protocol):
    """Samples drafts from the draft model's hidden states."""

    def draw(self, hidden: Array, changes: LogitChanges, columns: HostColumns) -> Ints:
        """Token ids int64 [R] from [R, H]."""
        ...


class WholeHead:
    """The model's own head."""

    def __init__(self, model: HostModel) -> None:
        self._model = model

    def draw(self, hidden: Array, changes: LogitChanges, columns: HostColumns) -> Ints:
        logits = self._model.logits(hidden)
        changes.apply(self._model.ops, logits)
        return self._model.ops.sample(logits, columns)


class FrequentHead:
    """The rows of the model's head for some tokens. `token_ids`: int64 [F], ascending. `rows`: gives logits [R, F]."""

    def __init__(self, ops: HostOps, rows: HostProduct, token_ids: Ints, vocab_size: int) -> None:
        self._ops, self._rows, self._token_ids = ops, rows, token_ids
        self._columns: Words = np.full(vocab_size, -1, dtype=np.int32)
        """The column of each token; -1 for tokens without one."""
        self._columns[token_ids] = np.arange(len(token_ids))

    def draw(self, hidden: Array, changes: LogitChanges, columns: HostColumns) -> Ints:
        logits = self._rows(hidden)
        if changes.edits is not None:
            self._ops.edit_logits(logits, self._on_columns(changes.edits))
        if changes.penalties is not None:
            self._ops.penalise(logits, changes.penalties, self._columns)
        return self._ops.sample_among(logits, self._token_ids, columns)

    def _on_columns(self, edits: HostEdits) -> HostEdits:
        """The edits by column, without those of tokens that have no column."""
        columns = self._columns[edits.tokens]
        here = columns >= 0
        return HostEdits(edits.rows[here], columns[here].astype(np.int64), edits.values[here])


def make_head(model: HostModel, checkpoint: WeightSource, path: Path) -> DraftHead:
    """The draft head of a model from the checkpoint folder at `path`, which may list frequent tokens.

    Raises:
        UnsupportedCheckpoint: the list is invalid.
    """
    token_ids = read_frequent_tokens(path, model.config.vocab_size)
    if token_ids is None:
        return WholeHead(model)
    ops = model.ops
    name = EMBEDDING if model.config.tie_embeddings else HEAD
    rows = next(array for key, array in checkpoint.tensors(ops.dtype) if key == name)[token_ids]
    return FrequentHead(ops, ops.pack_rows(rows), token_ids, model.config.vocab_size)


def read_frequent_tokens(path: Path, vocab_size: int) -> Ints | None:
    """The frequent tokens, int64 [F], ascending, from the folder's `draft.safetensors`; None without that file.

    Raises:
        UnsupportedCheckpoint: it is not a safetensors file with a list of tokens of the vocabulary.
    """
    file = path / DRAFT
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="numpy") as handle:
            numbers: Array = handle.get_tensor(FREQUENT_TOKENS)
    except (OSError, SafetensorError) as error:
        raise UnsupportedCheckpoint(f"{file}: cannot be read ({error})") from error
    if numbers.dtype != np.int32 or numbers.ndim != 1 or not len(numbers):
        raise UnsupportedCheckpoint(f"{file}: {FREQUENT_TOKENS} is not a list of int32")
    token_ids: Ints = np.unique(numbers).astype(np.int64)
    if token_ids[0] < 0 or token_ids[-1] >= vocab_size:
        raise UnsupportedCheckpoint(f"{file}: {FREQUENT_TOKENS} has tokens outside the vocabulary of {vocab_size}")
    return token_ids
