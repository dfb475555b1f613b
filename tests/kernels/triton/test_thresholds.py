"""Thresholds found by search are those that sorting finds."""

import math

import pytest
import torch

from kernels import reference
from kernels.ops import SlotSampling
from kernels.triton.thresholds import find_thresholds
from tests.support.kernel_tensors import DEVICE, DTYPES
from tests.support.sampling_cases import VOCABULARIES, by_rows, random_logits, slot_columns


def filters(vocab_size: int) -> SlotSampling:
    few, half = min(5, vocab_size), max(vocab_size // 2, 1)
    return slot_columns(
        5,
        vocab_size,
        inverse_temperature=[1.0, 2.0, 1 / 0.7, 1.0, 1.0],
        top_k=[few, vocab_size, half, vocab_size, 1],
        top_p=[1.0, 0.9, 0.5, 0.999999, 1e-6],
    )


def logits_of(kind: str, rows: int, vocab_size: int) -> torch.Tensor:
    logits = random_logits(rows, vocab_size)
    if kind == "flat":
        logits.fill_(-2.5)
    elif kind == "tied":
        logits = logits.round()
    elif kind == "mostly forbidden":
        logits[:, torch.arange(vocab_size, device=DEVICE) % 4 > 0] = -math.inf
        logits[0, 1:] = -math.inf
    elif kind == "far apart":
        logits *= 10.0 ** torch.linspace(-30, 30, vocab_size, device=DEVICE)
    return logits


def all_slots(rows: int) -> torch.Tensor:
    return torch.arange(rows, dtype=torch.int32, device=DEVICE)


def expected_thresholds(logits: torch.Tensor, columns: SlotSampling) -> torch.Tensor:
    rows = all_slots(logits.shape[0])
    scaled = logits.float() * columns.inverse_temperature[:, None]
    return reference.threshold(scaled, by_rows(columns, rows, rows.long()))[:, 0]


def assert_same_thresholds(logits: torch.Tensor, columns: SlotSampling) -> None:
    """Exactly; what keeps all is the row's least logit to the reference, and -inf to the kernel."""
    found = find_thresholds(logits, columns, all_slots(logits.shape[0]))
    least = (logits.float() * columns.inverse_temperature[:, None]).amin(dim=-1)
    assert torch.maximum(found, least).tolist() == expected_thresholds(logits, columns).tolist()


@pytest.mark.parametrize("kind", ["random", "flat", "tied", "mostly forbidden"])
@pytest.mark.parametrize("vocab_size", [1000, 1025])
def test_top_k_and_top_p(vocab_size: int, kind: str) -> None:
    assert_same_thresholds(logits_of(kind, 5, vocab_size), filters(vocab_size))


@pytest.mark.parametrize("vocab_size", sorted({*VOCABULARIES} - {1000, 1025}))
def test_vocabularies(vocab_size: int) -> None:
    assert_same_thresholds(logits_of("tied", 5, vocab_size), filters(vocab_size))


def test_logits_over_the_whole_range_of_float32() -> None:
    assert_same_thresholds(logits_of("far apart", 5, 1000), filters(1000))


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_narrow_logits(dtype: torch.dtype) -> None:
    assert_same_thresholds(random_logits(5, 1000, dtype), filters(1000))


def test_top_p_takes_as_many_of_equal_logits_as_top_k_leaves() -> None:
    """Of one 3 and six 2s, top-k of 3 keeps a mass of 1 + 2/e: 0.9 of it is more than the 3 alone has, 0.45 is not."""
    logits = torch.tensor([[2.0, 2.0, 3.0, 2.0, 2.0, 2.0, 2.0, 1.0]] * 2, device=DEVICE)
    columns = slot_columns(2, 8, top_k=[3, 3], top_p=[0.9, 0.45])
    assert expected_thresholds(logits, columns).tolist() == [2.0, 3.0]
    assert_same_thresholds(logits, columns)


@pytest.mark.parametrize("kind", ["random", "flat", "tied", "mostly forbidden"])
@pytest.mark.parametrize("vocab_size", [31, 1000])
def test_min_p(kind: str, vocab_size: int) -> None:
    """Tokens kept with top-k, with top-p, which is a share of what min-p leaves, and with both."""
    few = min(5, vocab_size)
    columns = slot_columns(
        7,
        vocab_size,
        min_p=[0.05, 0.3, 1.0, 0.02, 0.1, 0.001, 0.2],
        top_k=[vocab_size, 2, vocab_size, vocab_size, vocab_size, few, few],
        top_p=[1.0, 1.0, 0.9, 0.5, 0.95, 0.8, 0.6],
    )
    logits = logits_of(kind, 7, vocab_size)
    found = find_thresholds(logits, columns, all_slots(7))
    kept = logits >= found[:, None]
    assert torch.equal(kept, logits >= expected_thresholds(logits, columns)[:, None])
    assert torch.equal(kept[2], logits[2] == logits[2].max())


def test_rows_without_filters_and_greedy_rows_keep_all() -> None:
    columns = slot_columns(3, 31, top_p=[1.0, 0.1, 0.1], noise_scale=[1.0, 0.0, 1.0])
    found = find_thresholds(random_logits(3, 31), columns, all_slots(3))
    assert found.isinf().tolist() == [True, True, False]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Neither on their logits, finite or not, nor on how many there are, nor on where the rows lie."""
    columns = slot_columns(4, 300, top_k=[300, 20, 20, 300], top_p=[0.7, 0.7, 1.0, 0.7])
    wide = random_logits(4, 400)
    logits = wide[:, :300]
    alone = [find_thresholds(logits[i : i + 1].clone(), columns, all_slots(4)[i : i + 1]) for i in (0, 1)]
    logits[2, 5], logits[2, 250], logits[3] = math.inf, math.nan, -math.inf
    wide[:, 300:] = math.nan
    together = find_thresholds(logits, columns, all_slots(4))
    assert together[:2].tolist() == [float(each) for each in alone]
