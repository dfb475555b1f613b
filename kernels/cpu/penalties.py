"""Logit edits and penalties on numpy, as defined by `kernels.reference`."""

import numpy as np

from kernels.arrays import Array, Floats, Ints, Words
from kernels.host import HostEdits, HostPenalties


def edit_logits(logits: Floats, edits: HostEdits) -> None:
    """`kernels.reference.edit_logits`."""
    if len(edits.rows):
        np.add.at(logits, (edits.rows, edits.tokens), edits.values)


def penalise(logits: Floats, penalties: HostPenalties, token_columns: Words | None = None) -> None:
    """`kernels.reference.penalise_listed`, to the bit; used without the native library."""
    lengths = penalties.lengths
    rows: Ints = np.repeat(np.arange(len(logits)), lengths)
    places = np.arange(len(rows)) - np.repeat(lengths.cumsum() - lengths, lengths)
    lines = penalties.lines[rows]
    listed = rows, penalties.tokens[lines, places], penalties.times[lines, places]
    drafted = penalties.draft_rows, penalties.draft_tokens, penalties.draft_times
    # Both from the logits as they were; what is known of drafts is put over what the lines say of the same tokens.
    changes = [_penalised(logits, penalties, token_columns, *changed) for changed in (listed, drafted)]
    for changed, columns, values in changes:
        logits[changed, columns] = values


def _penalised(
    logits: Floats, penalties: HostPenalties, token_columns: Words | None, rows: Ints, tokens: Array, times: Words
) -> tuple[Ints, Array, Floats]:
    """Rows, columns and new values of the penalised tokens that have a column."""
    columns = tokens if token_columns is None else token_columns[tokens]
    if token_columns is not None:
        here = columns >= 0
        rows, columns, times = rows[here], columns[here], times[here]
    values = logits[rows, columns]
    repetition, presence = penalties.repetition[rows], penalties.presence[rows]
    scaled = np.where(values > 0, values / repetition, values * repetition)
    lower = scaled - (presence + penalties.frequency[rows] * times.astype(np.float32))
    return rows, columns, np.where(times > 0, lower, scaled)
