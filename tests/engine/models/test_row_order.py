"""The rows of projections in files, in the order of the layout."""

import tracemalloc

import pytest

from engine.checkpoints.row_order import HeadSplit, half_split_order
from engine.models.config import UnsupportedCheckpoint

SPLIT = HeadSplit(2, (1, 2, 1), {"first and last": (0, 2), "middle": (1,)})


def test_rotated_pairs_are_halves_and_the_rest_stays() -> None:
    assert half_split_order(2, 6, 4).tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]


def test_a_module_has_its_parts_of_all_heads_one_after_the_other() -> None:
    assert SPLIT.rows("first and last").tolist() == [0, 4, 3, 7]
    assert SPLIT.rows("middle").tolist() == [1, 2, 5, 6]
    assert (SPLIT.count("first and last"), SPLIT.count("middle"), SPLIT.total) == (4, 4, 8)


def test_claimed_heads_cost_no_memory() -> None:
    """Untrusted configs state heads; the matrix may not have as many rows."""
    tracemalloc.start()
    with pytest.raises(UnsupportedCheckpoint, match="a gate: 4294967296 rows of 16777216 heads"):
        HeadSplit(2**24, (128, 128), {"a gate": (1,)}).rows("a gate")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**16
