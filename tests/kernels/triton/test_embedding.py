"""Embedding gathers rows by token id."""

import pytest
import torch

from kernels.triton.embedding import embed
from tests.support.kernel_tensors import DEVICE, DTYPES, random


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [8, 80, 1024, 1500])
def test_rows_of_the_table(dtype: torch.dtype, width: int) -> None:
    table = random(11, width, dtype=dtype)
    token_ids = torch.tensor([10, 0, 3, 3, 7, 0], device=DEVICE)
    assert torch.equal(embed(table, token_ids), table[token_ids])


def test_no_tokens() -> None:
    token_ids = torch.empty(0, dtype=torch.int64, device=DEVICE)
    assert embed(random(11, 8, dtype=torch.float16), token_ids).shape == (0, 8)
