"""The most likely tokens of a row, with their log-probabilities."""

import numpy as np
import pytest
import torch

from engine.execution.logprobs import measure
from kernels.arrays import Floats, int_array
from kernels.cpu.torch_host import TorchHost
from kernels.reference_ops import ReferenceOps

OPS = TorchHost(ReferenceOps(torch.device("cpu"), torch.float32))


def logits(rows: int, vocab_size: int = 1000) -> Floats:
    return np.random.default_rng(rows).normal(size=(rows, vocab_size)).astype(np.float32)


@pytest.mark.parametrize("most", [1, 5, 20])
def test_they_are_what_a_sort_puts_first(most: int) -> None:
    given = logits(7)
    scores = measure(OPS, given, int_array(range(7)), most)
    expected = torch.from_numpy(given).log_softmax(-1)
    assert np.array_equal(scores.top_tokens, np.argsort(-given, axis=1)[:, :most])
    for name, places in (("logprobs", int_array(range(7))[:, None]), ("top_logprobs", scores.top_tokens)):
        actual = torch.from_numpy(getattr(scores, name)).view(len(given), -1)
        torch.testing.assert_close(actual, expected.gather(1, torch.from_numpy(places)), atol=1e-5, rtol=0)


def test_of_tokens_that_are_as_likely_the_lowest_come_first() -> None:
    given = np.zeros((2, 50), dtype=np.float32)
    given[0, [40, 12]] = 1.0
    given[1, 10:] = -np.inf
    assert measure(OPS, given, int_array([0, 0]), 4).top_tokens.tolist() == [[12, 40, 0, 1], [0, 1, 2, 3]]


def test_none_may_be_asked_for() -> None:
    (entry,) = measure(OPS, logits(1), int_array([3]), 0).entries([0])
    assert (entry.token_id, entry.top) == (3, ())


@pytest.mark.parametrize("broken", [1, 990, 1000])
def test_a_row_that_is_not_finite_is_no_matter_to_another(broken: int) -> None:
    """Nothing is said of it: its request fails."""
    given = logits(2)
    whole = measure(OPS, given[:1].copy(), int_array([3]), 20)
    given[1, :broken] = np.nan
    scores = measure(OPS, given, int_array([3, 3]), 20)
    assert np.array_equal(scores.top_tokens[0], whole.top_tokens[0])
    assert np.array_equal(scores.top_logprobs[0], whole.top_logprobs[0])
