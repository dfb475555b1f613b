"""A row with hidden states that are not finite is found; the other rows of its batch are not."""

import numpy as np
import pytest

from engine.execution.finite import finite_rows
from kernels.arrays import BFLOAT16, FLOAT32, Dtype, int_array

ENDS = int_array([0, 3, 4, 9])


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("place", "row"), [(0, 0), (1, 1), (3, 1), (4, 2), (5, 3), (9, 3)])
def test_one_number_that_is_none_fails_its_row_alone(dtype: Dtype, value: float, place: int, row: int) -> None:
    hidden = np.ones((10, 6), dtype=dtype)
    hidden[place, 4] = value
    assert finite_rows(hidden, ENDS) == [index != row for index in range(4)]


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32], ids=str)
def test_the_largest_numbers_are_finite_whatever_their_sum(dtype: Dtype) -> None:
    most = np.array(3.38e38).astype(dtype)
    assert finite_rows(np.array([[most, most, 0], [-most, -most, -0.0]], dtype=dtype), int_array([0, 1])) == [
        True,
        True,
    ]
