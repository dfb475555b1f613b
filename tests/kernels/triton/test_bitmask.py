"""Tokens that a grammar forbids are out, the others are as they were."""

import pytest
import torch

from kernels import reference
from kernels.triton.bitmask import mask_logits
from tests.support.kernel_tensors import DTYPES
from tests.support.sampling_cases import VOCABULARIES, random_bitmask, random_logits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_forbidden_tokens(vocab_size: int, dtype: torch.dtype) -> None:
    logits, bitmask = random_logits(3, vocab_size, dtype), random_bitmask(3, vocab_size)
    expected = logits.clone()
    reference.mask_logits(expected, bitmask)
    mask_logits(logits, bitmask)
    assert torch.equal(logits, expected)


def test_only_what_is_meant_of_a_wider_tensor() -> None:
    wide = random_logits(2, 128)
    bitmask = torch.zeros((2, 4), dtype=torch.int32, device=wide.device)
    bitmask[:, 0] = -1
    mask_logits(wide[:, :100], bitmask)
    assert wide.isinf().tolist() == [[False] * 32 + [True] * 68 + [False] * 28] * 2
