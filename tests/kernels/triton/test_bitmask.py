"""Tokens that a grammar forbids are out, the others are as they were."""

import pytest
import torch

from kernels import reference
from kernels.triton.bitmask import mask_rows
from tests.support.kernel_tensors import DTYPES
from tests.support.sampling_cases import VOCABULARIES, random_bitmask, random_logits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_forbidden_tokens(vocab_size: int, dtype: torch.dtype) -> None:
    logits, bitmask = random_logits(5, vocab_size, dtype), random_bitmask(3, vocab_size)
    rows = torch.tensor([4, 0, 2], device=logits.device)
    expected = logits.clone()
    reference.mask_rows(expected, rows, bitmask)
    mask_rows(logits, rows, bitmask)
    assert torch.equal(logits, expected)


def test_the_reference_masks_the_rows_that_are_named() -> None:
    logits = random_logits(4, 70)
    expected, bitmask = logits.clone(), random_bitmask(2, 70)
    reference.mask_logits(expected[1:2], bitmask[1:])
    reference.mask_logits(expected[3:], bitmask[:1])
    reference.mask_rows(logits, torch.tensor([3, 1], device=logits.device), bitmask)
    assert torch.equal(logits, expected)


def test_only_what_is_meant_of_a_wider_tensor() -> None:
    wide = random_logits(2, 128)
    bitmask = torch.zeros((2, 4), dtype=torch.int32, device=wide.device)
    bitmask[:, 0] = -1
    mask_rows(wide[:, :100], torch.arange(2, device=wide.device), bitmask)
    assert wide.isinf().tolist() == [[False] * 32 + [True] * 68 + [False] * 28] * 2
