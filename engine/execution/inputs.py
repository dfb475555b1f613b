"""The arrays of one step, made from its plan."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.config import BLOCK_TOKENS
from engine.execution.sampler import Draw
from engine.execution.slots import SlotTable, slot_of
from engine.request import Pooling, Request
from engine.scheduling.plan import ScheduledRow, StepPlan
from kernels.arrays import Ints
from kernels.host import StepRows

_NONE = np.empty(0, dtype=np.int64)

_SPARE_BLOCKS = 16
"""Columns of the tables that are kept from step to step, for the blocks that come meanwhile: 256 tokens for the
longest."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step as the model takes it. Its rows are in the order that kernels want: first those that decode, which compute
    one token and draw the next, by context; then all others by token count and context.

    order: where each of them stands in the plan; None where they are as the plan has them.
    token_ids: int64 [T]. wanted: int64 [W], those whose hidden states are read; None where all are. ends: int64 [R],
        where the last hidden state of each row lies among those.
    decoding: what the rows that decode draw, in order. While the same requests decode in the same slots it is the same
        list.
    """

    order: Sequence[int] | None
    token_ids: Ints
    wanted: Ints | None
    ends: Ints
    rows: StepRows
    decoding: list[Draw]

    def entered_blocks(self) -> Ints:
        """Blocks, int64, that a row starts to write in this step and leaves partly empty: of its last block no more is
        filled than the row has tokens.

        What their last owner left past the row's context must not be read as keys and values, not even to be masked: a
        NaN there would survive the mask.
        """
        counts, contexts = self.rows.query_lens, self.rows.context_lens
        filled = contexts % BLOCK_TOKENS
        entering = ((filled > 0) & (filled <= counts)).nonzero()[0]
        blocks: Ints = self.rows.block_tables[entering, contexts[entering] // BLOCK_TOKENS]
        return blocks


@dataclass(slots=True)
class _Decoding:
    """Rows of the last step that decoded: what is the same in the next one of the same requests.

    `stays` and `sizes` are their admissions and how many blocks they have, in the plan's order; `order` and what
    follows it are in that of the kernels, which is the same as long as all contexts grow alike. `tables` is changed in
    place, and only where a table has: a step is computed when the next one is placed. `rows`: of each place in the
    plan, its row here; None, as `order`, where both are the same.
    """

    requests: tuple[Request, ...]
    stays: list[int]
    sizes: list[int]
    order: Ints | None
    places: list[int] | None
    rows: Ints | None
    slots: Ints
    tables: Ints
    ones: Ints
    ends: Ints
    draws: list[Draw]


class RowPlacer:
    """Makes the inputs of a plan's rows, and keeps their slots up to date.

    Most of a step's rows are those of the one before, each with one token more: for those there is nothing to be done
    a row but to look up the token.
    """

    def __init__(self, slots: SlotTable, window: int | None = None) -> None:
        """`window`: how many tokens one sees in the model's last layer; None for all."""
        self._slots = slots
        self._window = window
        self._last: _Decoding | None = None

    def place(self, plan: StepPlan) -> StepInputs:
        requests, starts, counts, samples, _ = zip(*plan.rows, strict=True)
        if counts.count(1) == len(counts) and False not in samples:
            last, contexts, token_ids = self._decoding(plan.rows, requests, starts)
            tables, ends = last.tables, last.ends
            return StepInputs(last.places, token_ids, None, ends, StepRows(tables, last.ones, contexts), last.draws)
        return self._place_mixed(plan.rows)

    def _place_mixed(self, planned: Sequence[ScheduledRow]) -> StepInputs:
        """Rows that decode, and behind them all others."""
        places = [place for place, row in enumerate(planned) if row.tokens == 1 and row.samples]
        keyed = [
            (row.tokens, row.start + row.tokens, place)
            for place, row in enumerate(planned)
            if row.tokens > 1 or not row.samples
        ]
        keyed.sort()
        others = [planned[place] for _, _, place in keyed]
        draws: list[Draw] = []
        slots, contexts, token_ids = _NONE, _NONE, _NONE
        if places:
            decoding = [planned[place] for place in places]
            requests, starts, _, _, _ = zip(*decoding, strict=True)
            last, contexts, token_ids = self._decoding(decoding, requests, starts)
            slots, draws = last.slots, last.draws
            places = places if last.places is None else [places[place] for place in last.places]
        else:
            self._last = None  # blocks that drafts were given may be others by the next step, and as many
        for row in others:
            self._slots.update(row)
        contexts = np.append(contexts, [context for _, context, _ in keyed])
        counts = np.append(np.ones_like(slots), [tokens for tokens, _, _ in keyed])
        wanted = np.append(np.ones_like(slots), [wanted_tokens(row, self._window) for row in others])
        slots = np.append(slots, [slot_of(row.request) for row in others])
        tables = self._slots.tables_of(slots, contexts)
        return StepInputs(
            places + [place for _, _, place in keyed],
            np.append(token_ids, _token_ids(others)),
            None if (wanted == counts).all() else _last_of_rows(counts, wanted),
            wanted.cumsum() - 1,
            StepRows(tables, counts, contexts),
            draws,
        )

    def _decoding(
        self, planned: Sequence[ScheduledRow], requests: tuple[Request, ...], starts: tuple[int, ...]
    ) -> tuple[_Decoding, Ints, Ints]:
        """What is kept of rows that decode, their contexts and their tokens, in the order of the kernels."""
        last = self._kept(planned, requests, starts)
        self._slots.count_tokens(requests)
        contexts = np.array(starts)
        token_ids = np.array([request.tokens[start] for request, start in zip(requests, starts, strict=True)])
        if last.order is not None:
            contexts, token_ids = contexts[last.order], token_ids[last.order]
        contexts += 1
        return last, contexts, token_ids

    def _kept(
        self, planned: Sequence[ScheduledRow], requests: tuple[Request, ...], starts: tuple[int, ...]
    ) -> _Decoding:
        """What is kept of these rows, up to date. Blocks of a request that decodes come, and do not go or change."""
        stays = [request.admissions for request in requests]
        sizes = [len(request.block_table) for request in requests]
        last = self._last
        if last is None or last.requests != requests or last.stays != stays:
            self._last = last = self._begin(planned, requests, starts, stays, sizes)
        elif last.sizes != sizes:
            self._grow_tables(last, planned, sizes)
        return last

    def _grow_tables(self, last: _Decoding, planned: Sequence[ScheduledRow], sizes: list[int]) -> None:
        """Copy the blocks that came since the last step, and no others."""
        changed: list[tuple[int, int, int]] = []
        for place, (size, before) in enumerate(zip(sizes, last.sizes, strict=True)):
            if size != before:
                self._slots.update(planned[place])
                changed.append((place, before, size))
        last.sizes = sizes
        if max(size for _, _, size in changed) > last.tables.shape[1]:
            last.tables = self._tables_of(last.slots, last.order, sizes)
            return
        for place, before, size in changed:
            row = place if last.rows is None else int(last.rows[place])
            last.tables[row, before:size] = planned[place].request.block_table[before:size]

    def _tables_of(self, slots: Ints, order: Ints | None, sizes: list[int]) -> Ints:
        """With room to grow. `slots` are in the order of the kernels, `sizes` in that of the plan."""
        in_order = np.array(sizes) if order is None else np.array(sizes)[order]
        return self._slots.tables_of(slots, in_order * BLOCK_TOKENS, _SPARE_BLOCKS)

    def _begin(
        self,
        planned: Sequence[ScheduledRow],
        requests: tuple[Request, ...],
        starts: tuple[int, ...],
        stays: list[int],
        sizes: list[int],
    ) -> _Decoding:
        for row in planned:
            self._slots.update(row)
        slots = np.array([slot_of(request) for request in requests])
        order: Ints = np.argsort(starts, kind="stable")
        places: list[int] = order.tolist()
        slots = slots[order]
        draws = [Draw(requests[place]) for place in places]
        ones = np.ones(len(requests), dtype=np.int64)
        tables = self._tables_of(slots, order, sizes)
        ends = np.arange(len(requests))
        if places == list(range(len(places))):
            return _Decoding(requests, stays, sizes, None, None, None, slots, tables, ones, ends, draws)
        rows: Ints = np.argsort(order)
        return _Decoding(requests, stays, sizes, order, places, rows, slots, tables, ones, ends, draws)


def _token_ids(rows: Sequence[ScheduledRow]) -> Ints:
    """What the rows compute, one after another."""
    token_ids: list[int] = []
    for request, start, tokens, _, drafts in rows:
        token_ids += request.tokens[start : start + tokens]  # as many as there are: drafts come behind
        token_ids += drafts
    return np.array(token_ids, dtype=np.int64)


def wanted_tokens(row: ScheduledRow, window: int | None) -> int:
    """How many of the row's hidden states, its last ones, are read: those that are drawn from, pooled or scored, and
    one at least. That one stands for those before it, as attention carries a NaN forward, as far as the last layer's
    window goes.
    """
    request, start, tokens, _, drafts = row
    params, least = request.params, len(drafts) + 1
    if tokens <= least or (window is not None and tokens - least >= window):
        return tokens
    scored = row.request.wants_prompt_logprobs and start + 1 < request.prompt_tokens
    return tokens if scored or params.pooling is Pooling.MEAN else least


def _last_of_rows(counts: Ints, wanted: Ints) -> Ints:
    """Indices in the step of the last `wanted` of each row's `counts` tokens, int64 [R] both."""
    left_out = (counts - wanted).cumsum()
    indices: Ints = np.arange(wanted.sum()) + np.repeat(left_out, wanted)
    return indices
