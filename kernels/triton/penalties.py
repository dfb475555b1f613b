"""Penalties by token counts on the device. Oracle: `kernels.reference.penalise`.

The counts are computed by `kernels.triton.step.count_tokens`.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.ops import SlotSampling

TILE = 2048


@triton.jit
def penalise_kernel(
    logits,
    row_slots,
    repetition_penalty,
    presence_penalty,
    frequency_penalty,
    counts,
    logits_stride,
    counts_stride,
    vocab_size,
    TILE: tl.constexpr,
):
    """Penalise logits [R, V] in place by counts int32 [S, V], computing in float32. Grid: (tiles of V, R).

    Rows without penalties are skipped, and their slots' counts are not read.
    """
    row = tl.program_id(1).to(tl.int64)
    slot = tl.load(row_slots + row).to(tl.int64)
    repetition = tl.load(repetition_penalty + slot)
    presence, frequency = tl.load(presence_penalty + slot), tl.load(frequency_penalty + slot)
    if (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0):
        token = tl.program_id(0) * TILE + tl.arange(0, TILE)
        inside = token < vocab_size
        count = tl.load(counts + slot * counts_stride + token, mask=inside, other=0)
        place = logits + row * logits_stride + token
        # Few tokens came: the others' logits are neither read nor written.
        came = inside & (count != 0)
        logit = tl.load(place, mask=came, other=0.0).to(tl.float32)
        logit = tl.where(logit > 0.0, logit / repetition, logit * repetition)
        times = count >> 1
        logit -= tl.where(times > 0, presence, 0.0) + frequency * times.to(tl.float32)
        tl.store(place, logit.to(logits.dtype.element_ty), mask=came)


def penalise(logits: Tensor, columns: SlotSampling, row_slots: Tensor) -> None:
    """Penalise logits [R, V] in place, row i by the counts of slot `row_slots[i]` (int32)."""
    rows, vocab_size = logits.shape
    penalise_kernel[(triton.cdiv(vocab_size, TILE), rows)](
        logits,
        row_slots,
        columns.repetition_penalty,
        columns.presence_penalty,
        columns.frequency_penalty,
        columns.counts,
        logits.stride(0),
        columns.counts.stride(0),
        vocab_size,
        TILE=TILE,
    )
