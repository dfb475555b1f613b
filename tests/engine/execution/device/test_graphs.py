"""Which steps replay a graph, and what a step is filled up to."""

import pytest

from engine.execution.device.graphs import GraphKey, GraphSizes, graph_sizes, row_sizes
from engine.execution.device.inputs import arrange, continued, padding_rows, replayed_shape
from engine.memory.sequence_states import StateSave
from engine.scheduling.plan import ScheduledRow
from kernels.step import Row, RowSave
from tests.engine.execution.device.harness import running_request

SIZES = GraphSizes(row_sizes(16), 1000, drafted_rows=row_sizes(16), drafted_tokens=(4,), max_tokens=64)


def test_row_sizes() -> None:
    assert row_sizes(1) == (1,)
    assert row_sizes(3) == (1, 2, 4)
    assert row_sizes(9) == (1, 2, 4, 8, 16)
    assert row_sizes(64) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert row_sizes(1000)[-1] == 256


@pytest.mark.parametrize(
    ("rows", "most_tokens", "context", "key"),
    [
        (1, 1, 1, GraphKey(1, 1)),
        (3, 1, 30, GraphKey(4, 1)),
        (9, 4, 90, GraphKey(16, 4)),
        (16, 1, 1000, GraphKey(16, 1)),
        (17, 1, 17, None),
        (2, 2, 20, GraphKey(2, 4)),
        (2, 5, 20, None),
        (2, 3, 250, GraphKey(2, 4)),
        (2, 3, 251, None),
        (2, 1, 1001, None),
    ],
)
def test_the_smallest_graph_that_fits(rows: int, most_tokens: int, context: int, key: GraphKey | None) -> None:
    assert SIZES.key_for(rows, most_tokens, context) == key


def test_the_largest_is_captured_first() -> None:
    tokens = [key.rows * key.tokens_each for key in SIZES.keys]
    assert tokens == sorted(tokens, reverse=True)
    assert len(set(SIZES.keys)) == 10


def rows(*starts_and_tokens: tuple[int, int]) -> list[ScheduledRow]:
    return [
        ScheduledRow(running_request([5] * (start + tokens), slot, [0]), start, tokens, True)
        for slot, (start, tokens) in enumerate(starts_and_tokens)
    ]


def test_decode_rows_by_context_before_longer_ones() -> None:
    inputs = arrange(rows((30, 1), (0, 7), (9, 1), (4, 3)), SIZES)
    assert inputs.order == [2, 0, 1, 3]
    assert inputs.key is None
    assert inputs.lines == [Row(2, 9, 1, 0, 1, 0), Row(0, 30, 1, 0, 1, 1), Row(1, 0, 7, 0, 1, 2), Row(3, 4, 3, 0, 1, 9)]
    shape = inputs.shape
    assert (shape.rows, shape.tokens, shape.decode_rows) == (4, 12, 2)
    assert (shape.decode_queries, shape.extend_queries, shape.decode_context_tokens) == (1, 7, 41)
    assert shape.extend_tokens == 10


def test_a_step_of_decode_rows_is_filled_up() -> None:
    inputs = arrange(rows((30, 1), (9, 1), (4, 1)), SIZES)
    assert inputs.key == GraphKey(4, 1)
    assert inputs.lines[3] == Row(slot=-1, start=0, tokens=1, drafts=0, draws=0, first=3)
    assert inputs.shape == replayed_shape(GraphKey(4, 1), SIZES), "a replay launches what was recorded"
    assert len(inputs.rows) == 3


def drafted(start: int, drafts: int) -> ScheduledRow:
    return ScheduledRow(running_request([5] * (start + 1), start, [0]), start, 1 + drafts, True, (7,) * drafts)


def test_padding_takes_the_tokens_that_rows_with_fewer_drafts_leave() -> None:
    inputs = arrange([drafted(9, 0), drafted(20, 2), drafted(30, 3)], SIZES)
    assert inputs.key == GraphKey(4, 4)
    assert [(line.slot >= 0, line.start, line.tokens, line.drafts, line.first) for line in inputs.lines] == [
        (True, 9, 1, 0, 0),
        (True, 20, 3, 2, 1),
        (True, 30, 4, 3, 4),
        (False, 0, 4, 0, 8),
        (False, 0, 4, 0, 12),
        *[(False, 0, 0, 0, 16)] * 3,
    ]
    assert (inputs.draw_starts, inputs.ends) == ([0, 1, 4], [0, 3, 7])
    assert inputs.shape == replayed_shape(GraphKey(4, 4), SIZES)


@pytest.mark.parametrize("key", [GraphKey(rows, tokens) for rows in (1, 4, 32) for tokens in (2, 3, 9)])
def test_there_is_padding_for_all_that_rows_can_leave(key: GraphKey) -> None:
    """Of one token each in all rows, or in one row alone, to all tokens in all of them."""
    for rows in (1, key.rows):
        for tokens in range(rows, rows * key.tokens_each + 1):
            padding = padding_rows(key, rows, tokens)
            assert rows + len(padding) == key.lines
            assert tokens + sum(row.tokens for row in padding) == key.tokens
            assert max(row.tokens for row in padding) <= key.tokens_each


def test_a_row_with_nothing_before_it_is_replayed_with_drafts() -> None:
    assert arrange([drafted(0, 2), drafted(20, 0)], SIZES).key == GraphKey(2, 4)


def test_a_step_with_drafts_is_no_start_of_the_short_way() -> None:
    last = arrange([drafted(20, 2)], SIZES)
    following = [ScheduledRow(last.rows[0].request, 21, 1, True)]
    assert continued(last, following, SIZES) is None


def test_drafts_have_graphs_of_few_rows() -> None:
    sizes = graph_sizes(64, 1000, drafts=True)
    assert sizes.rows == row_sizes(64)
    assert sizes.drafted_rows == (1, 2, 4, 8, 16, 32)
    assert sizes.keys[0] == GraphKey(64, 1)
    assert sizes.key_for(7, 8, 100) is None, "8 rows of 9 tokens are more than 64"
    assert sizes.key_for(8, 5, 100) == GraphKey(8, 5)
    assert all(key.tokens_each == 1 for key in graph_sizes(64, 1000, drafts=False).keys)


def test_filling_lies_row_after_row() -> None:
    padding = padding_rows(GraphKey(3, 4))
    assert [(row.first, row.tokens) for row in padding] == [(0, 4), (4, 4), (8, 4), (12, 0), (12, 0), (12, 0)]


def test_saves_of_states_lie_row_after_row() -> None:
    planned = rows((32, 1), (0, 40), (9, 1))
    for row in planned:
        row.request.state = 10 + (row.request.slot or 0)
    saves = [StateSave(planned[1].request, 32, 5), StateSave(planned[0].request, 33, 4)]
    inputs = arrange(planned, SIZES, [*saves, StateSave(planned[1].request, 16, 6)])
    assert [(line.state, line.saves) for line in inputs.lines] == [(12, 0), (10, 1), (11, 3)]
    assert inputs.saves == [RowSave(1, 4), RowSave(16, 6), RowSave(32, 5)]
    assert padding_rows(GraphKey(1, 1))[0].state == -1


def test_tokens_up_to_the_last_row_with_drafts() -> None:
    planned = rows((30, 3), (0, 7), (9, 1), (40, 1))
    assert arrange(planned, SIZES).drafted_tokens == 0
    planned[0] = planned[0]._replace(drafts=(7, 8))
    inputs = arrange(planned, SIZES)
    assert [row.tokens for row in inputs.rows] == [1, 3, 1, 7]
    assert inputs.drafted_tokens == 4
