"""The input arrays of one step, built from its plan."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.config import BLOCK_TOKENS
from engine.execution.sampler import Draw
from engine.execution.slots import SlotTable, slot_of
from engine.request import Pooling, Request
from engine.scheduling.plan import ScheduledRow, StepPlan
from kernels.adapters import NO_ADAPTER
from kernels.arrays import Ints
from kernels.host import StepRows

_NONE = np.empty(0, dtype=np.int64)

_SPARE_BLOCKS = 16
"""Spare columns of a cached block table, for blocks allocated in later steps: 256 tokens for the longest request."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step as the model takes it. Rows are in the order that kernels want: first decode rows (one token, sampled), by
    context length; then all others by token count and context length.

    order: place of each row in the plan; None if the order is the plan's.
    token_ids: int64 [T]. wanted: int64 [W], indices of the tokens whose hidden states are read; None if all are. ends:
        int64 [R], index among those of each row's last hidden state.
    decoding: the draws of the decode rows, in order. It is the same list object while the same requests decode in the
        same slots.
    """

    order: Sequence[int] | None
    token_ids: Ints
    wanted: Ints | None
    ends: Ints
    rows: StepRows
    decoding: list[Draw]

    def entered_blocks(self) -> Ints:
        """Blocks, int64, that a row starts to write in this step and leaves partly empty.

        Values that a former owner left past the row's context must be cleared: a NaN there survives the attention mask.
        """
        counts, contexts = self.rows.query_lens, self.rows.context_lens
        filled = contexts % BLOCK_TOKENS
        entering = ((filled > 0) & (filled <= counts)).nonzero()[0]
        last = contexts[entering] // BLOCK_TOKENS
        tables = (self.rows.block_tables, *self.rows.window_tables)
        blocks: Ints = np.concatenate([of_group[entering, last] for of_group in tables])
        return blocks


@dataclass(slots=True)
class _Decoding:
    """Decode rows of the last step: what stays the same while the same requests decode.

    `admissions` and `sizes` are the requests' admission counts and block counts, in the plan's order; `order` and the
    fields after it are in the order of the kernels, which is the same as long as all contexts grow alike. `tables` and
    `window_tables` are those of the first group of KV and of the others. `tables` is
    changed in place and only where a block table changed; the previous step has been computed by then. `rows`: for each
    place in the plan its row here; None, like `order`, where both are the same.
    """

    requests: tuple[Request, ...]
    admissions: list[int]
    sizes: list[int]
    order: Ints | None
    places: list[int] | None
    rows: Ints | None
    slots: Ints
    tables: Ints
    window_tables: tuple[Ints, ...]
    ones: Ints
    ends: Ints
    draws: list[Draw]
    adapters: Ints


class RowPlacer:
    """Builds the inputs of a plan's rows and keeps their slots up to date.

    Most rows of a step are those of the step before with one more token. For those only the token is looked up.
    """

    def __init__(self, slots: SlotTable, window: int | None = None) -> None:
        """`window`: attention window of the model's last layer in tokens; None if unlimited."""
        self._slots = slots
        self._window = window
        self._last: _Decoding | None = None

    def place(self, plan: StepPlan) -> StepInputs:
        """The inputs of a plan."""
        requests, starts, counts, samples, _ = zip(*plan.rows, strict=True)
        if counts.count(1) == len(counts) and False not in samples:
            last, contexts, token_ids = self._decoding(plan.rows, requests, starts)
            tables, ends = last.tables, last.ends
            rows = StepRows(
                tables, last.ones, contexts, window_tables=last.window_tables, adapters=_if_any(last.adapters)
            )
            return StepInputs(last.places, token_ids, None, ends, rows, last.draws)
        return self._place_mixed(plan.rows)

    def _place_mixed(self, planned: Sequence[ScheduledRow]) -> StepInputs:
        """Decode rows first, then all others."""
        places = [place for place, row in enumerate(planned) if row.tokens == 1 and row.samples]
        keyed = [
            (row.tokens, row.start + row.tokens, place)
            for place, row in enumerate(planned)
            if row.tokens > 1 or not row.samples
        ]
        keyed.sort()
        others = [planned[place] for _, _, place in keyed]
        draws: list[Draw] = []
        slots, contexts, token_ids, adapters = _NONE, _NONE, _NONE, _NONE
        if places:
            decoding = [planned[place] for place in places]
            requests, starts, _, _, _ = zip(*decoding, strict=True)
            last, contexts, token_ids = self._decoding(decoding, requests, starts)
            slots, draws, adapters = last.slots, last.draws, last.adapters
            places = places if last.places is None else [places[place] for place in last.places]
        else:
            self._last = None  # blocks of drafts may be replaced by as many others until the next step
        for row in others:
            self._slots.update(row)
        contexts = np.append(contexts, [context for _, context, _ in keyed])
        counts = np.append(np.ones_like(slots), [tokens for tokens, _, _ in keyed])
        wanted = np.append(np.ones_like(slots), [wanted_tokens(row, self._window) for row in others])
        adapters = np.append(adapters, _adapters_of([row.request for row in others]))
        slots = np.append(slots, [slot_of(row.request) for row in others])
        tables = self._slots.tables_of(slots, contexts)
        return StepInputs(
            places + [place for _, _, place in keyed],
            np.append(token_ids, _token_ids(others)),
            None if (wanted == counts).all() else _last_of_rows(counts, wanted),
            wanted.cumsum() - 1,
            StepRows(
                tables,
                counts,
                contexts,
                window_tables=self._slots.window_tables_of(slots, contexts),
                adapters=_if_any(adapters),
            ),
            draws,
        )

    def _decoding(
        self, planned: Sequence[ScheduledRow], requests: tuple[Request, ...], starts: tuple[int, ...]
    ) -> tuple[_Decoding, Ints, Ints]:
        """The cached state of decode rows, their contexts and their token ids, in the order of the kernels."""
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
        """The cached state of these rows, updated. A decoding request only gains blocks; it does not lose or replace
        any."""
        admissions = [request.admissions for request in requests]
        sizes = [len(request.block_table) for request in requests]
        last = self._last
        if last is None or last.requests != requests or last.admissions != admissions:
            self._last = last = self._begin(planned, requests, starts, admissions, sizes)
        elif last.sizes != sizes:
            self._grow_tables(last, planned, sizes)
        return last

    def _grow_tables(self, last: _Decoding, planned: Sequence[ScheduledRow], sizes: list[int]) -> None:
        """Copy only the blocks allocated since the last step."""
        changed: list[tuple[int, int, int]] = []
        for place, (size, before) in enumerate(zip(sizes, last.sizes, strict=True)):
            if size != before:
                self._slots.update(planned[place])
                changed.append((place, before, size))
        last.sizes = sizes
        last.window_tables = self._window_tables_of(last.slots, last.order, sizes)
        if max(size for _, _, size in changed) > last.tables.shape[1]:
            last.tables = self._tables_of(last.slots, last.order, sizes)
            return
        for place, before, size in changed:
            row = place if last.rows is None else int(last.rows[place])
            last.tables[row, before:size] = planned[place].request.block_table[before:size]

    def _tables_of(self, slots: Ints, order: Ints | None, sizes: list[int]) -> Ints:
        """Block tables with spare columns. `slots` are in the order of the kernels, `sizes` in that of the plan."""
        in_order = np.array(sizes) if order is None else np.array(sizes)[order]
        return self._slots.tables_of(slots, in_order * BLOCK_TOKENS, _SPARE_BLOCKS)

    def _window_tables_of(self, slots: Ints, order: Ints | None, sizes: list[int]) -> tuple[Ints, ...]:
        if not self._slots.window_tables:
            return ()
        in_order = np.array(sizes) if order is None else np.array(sizes)[order]
        return self._slots.window_tables_of(slots, in_order * BLOCK_TOKENS)

    def _begin(
        self,
        planned: Sequence[ScheduledRow],
        requests: tuple[Request, ...],
        starts: tuple[int, ...],
        admissions: list[int],
        sizes: list[int],
    ) -> _Decoding:
        for row in planned:
            self._slots.update(row)
        slots = np.array([slot_of(request) for request in requests])
        order: Ints = np.argsort(starts, kind="stable")
        places: list[int] = order.tolist()
        slots = slots[order]
        in_order = [requests[place] for place in places]
        draws, adapters = list(map(Draw, in_order)), _adapters_of(in_order)
        ones = np.ones(len(requests), dtype=np.int64)
        tables, further = self._tables_of(slots, order, sizes), self._window_tables_of(slots, order, sizes)
        ends = np.arange(len(requests))
        if places == list(range(len(places))):
            return _Decoding(
                requests, admissions, sizes, None, None, None, slots, tables, further, ones, ends, draws, adapters
            )
        rows: Ints = np.argsort(order)
        return _Decoding(
            requests, admissions, sizes, order, places, rows, slots, tables, further, ones, ends, draws, adapters
        )


def _adapters_of(requests: Sequence[Request]) -> Ints:
    """The slot of each request's adapter, int64 [R]."""
    slots = [request.adapter_slot for request in requests]
    return np.array([NO_ADAPTER if slot is None else slot for slot in slots], dtype=np.int64)


def _if_any(adapters: Ints) -> Ints | None:
    """The slots of rows' adapters; None if no row has one."""
    return adapters if len(adapters) and adapters.max() != NO_ADAPTER else None


def _token_ids(rows: Sequence[ScheduledRow]) -> Ints:
    """The token ids that the rows compute, concatenated."""
    token_ids: list[int] = []
    for request, start, tokens, _, drafts in rows:
        token_ids += request.tokens[start : start + tokens]  # drafts are not in `tokens`
        token_ids += drafts
    return np.array(token_ids, dtype=np.int64)


def wanted_tokens(row: ScheduledRow, window: int | None) -> int:
    """How many of the row's last hidden states are read: those sampled from, pooled or scored, and at least one. The
    last one also reveals a NaN in those before it, as attention carries a NaN forward within the window of the last
    layer."""
    request, start, tokens, _, drafts = row
    params, least = request.params, len(drafts) + 1
    if tokens <= least or (window is not None and tokens - least >= window):
        return tokens
    scored = row.request.wants_prompt_logprobs and start + 1 < request.prompt_tokens
    return tokens if scored or params.pooling is Pooling.MEAN else least


def _last_of_rows(counts: Ints, wanted: Ints) -> Ints:
    """Indices in the step of the last `wanted` of each row's `counts` tokens, both int64 [R]."""
    left_out = (counts - wanted).cumsum()
    indices: Ints = np.arange(wanted.sum()) + np.repeat(left_out, wanted)
    return indices
