"""One embedding table for the target and the draft model, where both have the same."""

import numpy as np

from engine.models.host_model import HostModel
from engine.models.layout import EMBEDDING
from engine.models.sources import WeightSource
from kernels.arrays import Array, bits_of

_TOKENS = 512
"""Rows that are compared at once."""


def share_table(target: HostModel, draft: HostModel, checkpoint: WeightSource) -> bool:
    """Let `draft`, which was loaded from `checkpoint`, use the target's embedding table if its own is equal after the
    same rounding, and free its copy, which is most of a small model's memory. Returns whether the table is shared."""
    mine, other = draft.config, target.config
    if (mine.hidden_size, mine.vocab_size, mine.tie_embeddings) != (
        other.hidden_size,
        other.vocab_size,
        other.tie_embeddings,
    ):
        return False
    rows = next(array for name, array in checkpoint.tensors(draft.ops.dtype) if name == EMBEDDING)
    if not _holds(target, rows):
        return False
    draft.use_table_of(target)
    return True


def _holds(model: HostModel, rows: Array) -> bool:
    """Whether the model reads exactly these rows, [V, H], from its table, bit by bit."""
    for first in range(0, len(rows), _TOKENS):
        chunk = rows[first : first + _TOKENS]
        read = model.embed(np.arange(first, first + len(chunk)))
        if not np.array_equal(bits_of(read), bits_of(chunk)):
            return False
    return True
