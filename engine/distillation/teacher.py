"""The teacher's last hidden states over every answer, computed once and stored in a file.

Its log-probabilities are these times its head, so training needs nothing else of the teacher.
"""

from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from engine.distillation.corpus import Corpus, grouped, make_batch
from engine.distillation.decoder import Decoder

_BATCH_TOKENS = 4096
_DTYPE = torch.bfloat16

HiddenProgress = Callable[[int, int], None]
"""Called with (positions done, positions in total)."""


def cache_hidden(
    teacher: Decoder, embedding: Tensor, corpus: Corpus, path: Path, progress: HiddenProgress | None = None
) -> Tensor:
    """bfloat16 [corpus.positions, H], memory-mapped: for each answer token, the state that predicts it.

    The file's rows are in the order of positions; complete sequences of an interrupted run are reused.
    """
    width = embedding.shape[1]
    ends = [
        first + len(answer.answer_ids) for first, answer in zip(corpus.first_position, corpus.sequences, strict=True)
    ]
    path.touch()
    done = bisect_right(ends, path.stat().st_size // (width * _DTYPE.itemsize))
    with path.open("r+b") as file, torch.no_grad():
        file.seek((ends[done - 1] if done else 0) * width * _DTYPE.itemsize)
        file.truncate()
        for members in grouped(corpus, range(done, len(corpus)), _BATCH_TOKENS):
            batch = make_batch(corpus, members)
            hidden = teacher(embedding[batch.inputs.to(embedding.device)].to(_DTYPE)).flatten(0, 1)
            wanted = hidden[batch.predicting.to(hidden.device)].to("cpu", _DTYPE)
            file.write(wanted.view(torch.uint8).numpy().tobytes())
            file.flush()
            if progress is not None:
                progress(ends[members[-1]], corpus.positions)
    stored = torch.from_file(str(path), shared=False, size=corpus.positions * width, dtype=_DTYPE)
    return stored.view(corpus.positions, width)
