"""A step as a list of words: int64 numbers, in the order of `_Header`, then the arrays that it counts. Its draws."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from kernels.arrays import Array, Floats, Ints, int_array
from kernels.delta import StateRows
from kernels.host import HostColumns, StepRows
from kernels.layout import BLOCK_TOKENS

_NONE = -1
_NO_MEMORY: Floats = np.empty((0, 0, 0), np.float32)


def draw_words(hidden: Array, columns: HostColumns) -> tuple[Ints, bytes]:
    """Draws without thresholds: the shape of their hidden states, int64, then as `held_draw_words`."""
    words, data = _column_words(columns)
    return np.concatenate((int_array(hidden.shape), words)), data


def draws_of(words: Ints, data: bytes, vocab_size: int) -> tuple[tuple[int, int], HostColumns]:
    """The shape of the hidden states, and the columns, of some words and bytes."""
    draws, size = words[:2].tolist()
    return (draws, size), _columns_of(words[2:], data, draws, vocab_size)


def held_draw_words(indices: Ints, columns: HostColumns) -> tuple[Ints, bytes]:
    """Draws without thresholds from hidden states that ranks hold: their indices and their keys, int64; bytes:
    `inverse_temperature` and `noise_scale`, float32."""
    words, data = _column_words(columns)
    return np.concatenate((int_array([len(indices)]), indices, words)), data


def held_draws_of(words: Ints, data: bytes, vocab_size: int) -> tuple[Ints, HostColumns]:
    """The indices and the columns of some words and bytes."""
    draws = int(words[0])
    return words[1 : 1 + draws], _columns_of(words[1 + draws :], data, draws, vocab_size)


def _column_words(columns: HostColumns) -> tuple[Ints, bytes]:
    numbers = np.stack((columns.inverse_temperature, columns.noise_scale)).astype(np.float32)
    return columns.keys.ravel().astype(np.int64), numbers.tobytes()


def _columns_of(words: Ints, data: bytes, draws: int, vocab_size: int) -> HostColumns:
    inverse_temperature, noise_scale = np.frombuffer(data, np.float32).reshape(2, draws)
    return HostColumns(
        inverse_temperature=inverse_temperature,
        noise_scale=noise_scale,
        top_k=np.full(draws, vocab_size, np.int64),
        top_p=np.ones(draws, np.float32),
        min_p=np.zeros(draws, np.float32),
        keys=words.reshape(draws, 2),
    )


class _Header(NamedTuple):
    """tokens, rows of the step. blocks: of a row in each table, at most. tables: block tables, of which the others
    than the first are of windows. wanted: tokens whose hidden states are wanted; -1: of all. adapters: 1 if rows have
    some. saves, copies: of states; -1: the model has none."""

    tokens: int
    rows: int
    blocks: int
    tables: int
    wanted: int
    adapters: int
    saves: int
    copies: int


class Step(NamedTuple):
    """The arguments of `HostModel.forward`. The states of `rows` have no memory: each rank has its own."""

    token_ids: Ints
    rows: StepRows
    wanted: Ints | None


def step_words(token_ids: Ints, rows: StepRows, wanted: Ints | None) -> Ints:
    """The words of a step, int64 [words]. Entries of block tables past the longest context are left out."""
    states = rows.states
    blocks = -(-int(rows.context_lens.max(initial=0)) // BLOCK_TOKENS)
    tables = [table[:, :blocks] for table in (rows.block_tables, *rows.window_tables)]
    header = _Header(
        tokens=len(token_ids),
        rows=len(rows.query_lens),
        blocks=blocks,
        tables=len(tables),
        wanted=_NONE if wanted is None else len(wanted),
        adapters=int(rows.adapters is not None),
        saves=_NONE if states is None else len(states.saves),
        copies=_NONE if states is None else len(states.copies),
    )
    arrays: list[Iterable[int] | Ints] = [header, token_ids, rows.query_lens, rows.context_lens]
    arrays += [table.ravel() for table in tables]
    arrays += [each for each in (rows.adapters, wanted) if each is not None]
    if states is not None:
        arrays += [states.slots, states.drafts, states.saves.ravel(), states.copies.ravel()]
    return np.concatenate([np.asarray(array, dtype=np.int64) for array in arrays])


def step_of(words: Ints) -> Step:
    """The step of some words."""
    header = _Header(*words[: len(_Header._fields)].tolist())
    at = len(header)

    def take(*shape: int) -> Ints:
        nonlocal at
        count = int(np.prod(shape))
        at += count
        return words[at - count : at].reshape(shape)

    token_ids, query_lens, context_lens = take(header.tokens), take(header.rows), take(header.rows)
    block_tables, *window_tables = (take(header.rows, header.blocks) for _ in range(header.tables))
    adapters = take(header.rows) if header.adapters else None
    wanted = None if header.wanted == _NONE else take(header.wanted)
    states = None
    if header.saves != _NONE:
        slots, drafts = take(header.rows), take(header.rows)
        states = StateRows(_NO_MEMORY, slots, drafts, take(header.saves, 3), take(header.copies, 2))
    assert at == len(words), f"a step of {at} words has {len(words)}"
    return Step(
        token_ids,
        StepRows(block_tables, query_lens, context_lens, states, tuple(window_tables), adapters),
        wanted,
    )
