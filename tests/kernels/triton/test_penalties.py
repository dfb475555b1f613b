"""Penalties by counts, for the slots that have some."""

import math

import pytest
import torch

from kernels import reference
from kernels.triton.penalties import penalise
from tests.support.kernel_tensors import DEVICE, DTYPES, assert_close
from tests.support.sampling_cases import every_kind, random_logits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", [1, 31, 5003])
def test_penalties(vocab_size: int, dtype: torch.dtype) -> None:
    columns = every_kind(vocab_size)
    row_slots = torch.tensor([4, 1, 1, 0, 3, 2], dtype=torch.int32, device=DEVICE)
    logits = random_logits(6, vocab_size, dtype)
    before, expected = logits.clone(), logits.clone()
    reference.penalise(expected, columns, row_slots)
    penalise(logits, columns, row_slots)
    assert_close(logits, expected)
    untouched = columns.counts[row_slots.long()] == 0
    untouched[3] = True  # slot 0 has no penalty, whatever its counts say
    assert torch.equal(logits[untouched], before[untouched])


def test_rows_of_a_wider_tensor() -> None:
    """The logits of a padded vocabulary, forbidden and broken ones among them."""
    columns = every_kind(100)
    row_slots = torch.tensor([1, 2, 3], dtype=torch.int32, device=DEVICE)
    wide = random_logits(3, 128)
    wide[0, :50], wide[1, 7] = -math.inf, math.nan
    expected = wide.clone()
    reference.penalise(expected[:, :100], columns, row_slots)
    penalise(wide[:, :100], columns, row_slots)
    torch.testing.assert_close(wide, expected, equal_nan=True)
