"""One table of tokens for two models, where one was made from the other and has the same."""

import numpy as np

from engine.models.host_model import HostModel
from engine.models.layout import EMBEDDING
from engine.models.sources import WeightSource
from kernels.arrays import Array, bits_of

_TOKENS = 512
"""Rows that are compared at a time."""


def share_table(target: HostModel, draft: HostModel, checkpoint: WeightSource) -> bool:
    """Have `draft`, which was loaded from `checkpoint`, use the target's table if the file's own, rounded alike, is the
    same; its copy is given back. Such a table is most of a small model's memory. Says whether it is."""
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
    """Are these, [V, H], what the model reads of its table, to the bit?"""
    for first in range(0, len(rows), _TOKENS):
        chunk = rows[first : first + _TOKENS]
        read = model.embed(np.arange(first, first + len(chunk)))
        if not np.array_equal(bits_of(read), bits_of(chunk)):
            return False
    return True
