"""Log-probabilities and ranks of the rows that ask."""

import math

import pytest
import torch

from kernels import reference
from kernels.triton.logprobs import token_logprobs
from tests.support.kernel_tensors import DEVICE, DTYPES
from tests.support.sampling_cases import VOCABULARIES, random_logits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_chosen_tokens(vocab_size: int, dtype: torch.dtype) -> None:
    logits = random_logits(6, vocab_size, dtype)
    logits[2, 1::3] = -math.inf
    rows = torch.tensor([5, 0, 2, 2], device=DEVICE)
    tokens = torch.tensor([vocab_size - 1, 0, vocab_size // 2, 0], device=DEVICE)
    found = token_logprobs(logits, rows, tokens)
    normalisers, logprobs, ranks = reference.token_logprobs(logits[rows], tokens)
    torch.testing.assert_close(found.normalisers, normalisers, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(found.logprobs, logprobs, atol=4e-6, rtol=2e-6)
    assert found.ranks.tolist() == ranks.tolist()


def test_equal_logits_share_the_best_rank() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0]], device=DEVICE)
    ranks = [token_logprobs(logits, *torch.tensor([[0], [token]], device=DEVICE)).ranks.item() for token in range(5)]
    assert ranks == [5, 1, 1, 4, 1]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    wide = random_logits(4, 5100)
    logits = wide[:, :5003]
    token = torch.tensor([17], device=DEVICE)
    alone = token_logprobs(logits[1:2].clone(), torch.tensor([0], device=DEVICE), token)
    logits[0, 3], logits[2, 4], wide[:, 5003:] = math.nan, math.inf, math.nan
    together = token_logprobs(logits, torch.arange(4, device=DEVICE), token.expand(4).contiguous())
    assert float(together.normalisers[1]) == float(alone.normalisers)
    assert float(together.logprobs[1]) == float(alone.logprobs)
    assert int(together.ranks[1]) == int(alone.ranks)
