"""A step and an adapter are the same after their way as words."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.execution.parallel.adapter_words import adapter_of, adapter_words
from engine.execution.parallel.step_words import step_of, step_words
from kernels.adapter_sizes import LayerSizes, ProductSize
from kernels.arrays import int_array
from kernels.delta import StateRows
from kernels.host import StepRows
from tests.support.tiny_adapters import random_adapter


@st.composite
def steps(draw: st.DrawFn) -> tuple[np.ndarray, StepRows, np.ndarray | None]:
    rows = draw(st.integers(1, 5))
    query_lens = int_array(draw(st.lists(st.integers(1, 4), min_size=rows, max_size=rows)))
    context_lens = query_lens + int_array(draw(st.lists(st.integers(0, 40), min_size=rows, max_size=rows)))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    tables = [random.integers(0, 9, (rows, 8)) for _ in range(draw(st.integers(1, 3)))]
    states = None
    if draw(st.booleans()):
        saves, copies = random.integers(0, 9, (draw(st.integers(0, 2)), 3)), random.integers(0, 9, (1, 2))
        states = StateRows(np.zeros((1, 1, 1), np.float32), query_lens - 1, query_lens % 2, saves, copies)
    adapters = random.integers(-1, 3, rows) if draw(st.booleans()) else None
    wanted = query_lens.cumsum() - 1 if draw(st.booleans()) else None
    step_rows = StepRows(tables[0], query_lens, context_lens, states, tuple(tables[1:]), adapters)
    return random.integers(0, 512, int(query_lens.sum())), step_rows, wanted


@given(steps())
def test_a_step(step: tuple[np.ndarray, StepRows, np.ndarray | None]) -> None:
    tokens, rows, wanted = step
    again = step_of(step_words(tokens, rows, wanted))
    blocks = -(-rows.context_lens.max() // 16)
    np.testing.assert_array_equal(again.token_ids, tokens)
    for mine, other in ((again.wanted, wanted), (again.rows.adapters, rows.adapters)):
        assert (mine is None) == (other is None)
        assert mine is None or other is None or mine.tolist() == other.tolist()
    np.testing.assert_array_equal(again.rows.query_lens, rows.query_lens)
    np.testing.assert_array_equal(again.rows.context_lens, rows.context_lens)
    np.testing.assert_array_equal(again.rows.block_tables, rows.block_tables[:, :blocks])
    for mine, other in zip(again.rows.window_tables, rows.window_tables, strict=True):
        np.testing.assert_array_equal(mine, other[:, :blocks])
    assert (again.rows.states is None) == (rows.states is None)
    if rows.states is not None and again.rows.states is not None:
        for field in ("slots", "drafts", "saves", "copies"):
            np.testing.assert_array_equal(getattr(again.rows.states, field), getattr(rows.states, field))


def test_an_adapter() -> None:
    layers: list[LayerSizes] = [
        {"qkv": ProductSize((8, 4, 4), 6), "down": ProductSize((6,), 10)},
        {"output": ProductSize((6,), 8)},
    ]
    adapter = random_adapter(layers, seed=1)
    again = adapter_of(*adapter_words(adapter))
    assert again is not None
    assert [[(p.first, p.down.tolist(), p.up.tolist()) for p in layer.qkv] for layer in again.layers] == [
        [(p.first, p.down.tolist(), p.up.tolist()) for p in layer.qkv] for layer in adapter.layers
    ]
    assert [part.first for part in again.all_parts()] == [part.first for part in adapter.all_parts()]
    assert adapter_of(*adapter_words(None)) is None
