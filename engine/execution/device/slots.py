"""Slots of running requests on the device. The host tracks what each slot holds and uploads the differences."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import takewhile
from operator import is_
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config import BLOCK_TOKENS, MOST_DRAFTS
from engine.execution.device.arena import Arena, Changes
from engine.execution.device.columns import COLUMN_WORDS, request_words, view_columns
from engine.execution.device.inputs import RowWords
from engine.execution.device.staging import Staging, fences_of
from engine.execution.slots import uses_counts
from engine.request import Request
from engine.scheduling.plan import ScheduledRow
from kernels.adapters import NO_ADAPTER
from kernels.step import COUNTING_WORDS, ROW_WORDS, SAVE_WORDS, Counting, RowSave, Sequences, StepOps


class _Table(IntEnum):
    """The tables of the arena, in order. The sampling columns come last, one table each."""

    ROWS = 0
    COUNTINGS = 1
    TOKENS = 2
    BLOCK_TABLES = 3
    DRAFTS = 4
    SAVES = 5
    WINDOW_TABLES = 6
    ADAPTERS = 7
    FIRST_COLUMN = 8


class SlotState(NamedTuple):
    """Content of a slot on the device.

    `admissions` distinguishes a request from the same request before it was preempted, when it had other blocks. The
    device has `blocks`, and `window_blocks` of further groups; the first `counted` tokens of the sequence are in the
    counts.
    """

    request: Request
    admissions: int
    blocks: Sequence[int] = ()
    window_blocks: Sequence[Sequence[int]] = ()
    counted: int = 0

    def belongs_to(self, request: Request) -> bool:
        """Whether the state is that of the request's current admission."""
        return self.request is request and self.admissions == request.admissions


@dataclass(slots=True)
class _Update:
    """The changes of a step: words for the arena, states and numbers of tokens to record once the upload is launched,
    slots to count in."""

    changes: Changes
    states: dict[int, SlotState] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    countings: list[Counting] = field(default_factory=list)
    new_counts: list[int] = field(default_factory=list)


class DeviceSlots:
    """The slots of one model.

    A slot's row holds its request's tokens up to the end of the rows computed so far, plus one if that was sampled; the
    last one may be on the device before it is in `request.tokens`.

    rows: int32 [encoded rows, 8], the rows of the current step. saves: int32 [state slots, 2], those of its states, as
    encoded `kernels.step.RowSave`. adapters: int32 [S], the slot of each request's adapter, or NO_ADAPTER. sequences,
    columns: as the ops take them. The counts are allocated with the first request that has a penalty.
    """

    def __init__(
        self,
        ops: StepOps,
        device: torch.device,
        *,
        num_slots: int,
        num_rows: int,
        max_model_len: int,
        vocab_size: int,
        num_states: int = 0,
        groups: int = 1,
        spare_block: int | None = None,
    ) -> None:
        """`groups`: of the model's KV. `spare_block`: id of the first slot's spare block, for a draft model; the spare
        block of a slot follows its request's blocks."""
        self._ops = ops
        self._num_slots = num_slots
        self._spare_block = spare_block
        self._most_blocks = -(-max_model_len // BLOCK_TOKENS)
        self._vocab_size = vocab_size
        self._states: list[SlotState | None] = [None] * num_slots
        self._tokens = [0] * num_slots
        """By slot, how many tokens of its sequence the device has."""
        shapes = {
            _Table.ROWS: (num_rows, ROW_WORDS),
            _Table.COUNTINGS: (num_slots, COUNTING_WORDS),
            _Table.TOKENS: (num_slots, max_model_len),
            _Table.BLOCK_TABLES: (num_slots, self._most_blocks),
            _Table.DRAFTS: (num_slots, MOST_DRAFTS),
            _Table.SAVES: (max(1, num_states), SAVE_WORDS),
            _Table.WINDOW_TABLES: ((groups - 1) * num_slots, self._most_blocks),
            _Table.ADAPTERS: (num_slots, 1),
        }
        self._arena = Arena([*shapes.values(), *((num_slots, words) for words in COLUMN_WORDS.values())], device)
        self.rows = self._arena.table(_Table.ROWS)
        self.saves = self._arena.table(_Table.SAVES)
        self.adapters = self._arena.table(_Table.ADAPTERS).flatten()
        self._countings = self._arena.table(_Table.COUNTINGS)
        self.sequences = Sequences(
            self._arena.table(_Table.TOKENS),
            self._arena.table(_Table.BLOCK_TABLES),
            self._arena.table(_Table.DRAFTS),
            torch.split(self._arena.table(_Table.WINDOW_TABLES), num_slots) if groups > 1 else (),
        )
        self._column_tables = {name: _Table.FIRST_COLUMN + index for index, name in enumerate(COLUMN_WORDS)}
        tables = {name: self._arena.table(table) for name, table in self._column_tables.items()}
        # One row shared by all slots, until a request has a penalty.
        no_counts = torch.zeros((1, vocab_size), dtype=torch.int32, device=device).expand(num_slots, -1)
        self.columns = view_columns(tables, no_counts)
        self._counting = False
        self._staging = Staging(device, fences_of(device))

    def load(self, rows: Sequence[ScheduledRow], words: RowWords, saves: Sequence[RowSave] = ()) -> None:
        """Bring the slots of a step's rows up to date, and load the encoded rows and saves.

        If it runs out of memory, nothing has changed.
        """
        update = self._update(words)
        for row in rows:
            self._load_row(row, update)
        if saves:
            update.changes.put(self._arena.place(_Table.SAVES, 0), [word for save in saves for word in save])
        if update.countings:
            counted = [word for counting in update.countings for word in counting]
            update.changes.put(self._arena.place(_Table.COUNTINGS, 0), counted)
            counts = self._counts()
        self._apply(update)
        if update.countings:
            for slot in update.new_counts:
                counts[slot].zero_()
            self._ops.count_tokens(counts, self.sequences.tokens, self._countings[: len(update.countings)])

    def advance(self, rows: Sequence[ScheduledRow], words: RowWords) -> bool:
        """`load` for rows of one token each, which the device has drawn, without counts. False, with nothing changed,
        if a row is another one."""
        update, states, known = self._update(words), self._states, self._tokens
        for request, start, *_ in rows:
            slot = request.slot
            assert slot is not None
            state = states[slot]
            if state is None or state.request is not request or state.admissions != request.admissions:
                return False
            if known[slot] != start + 1:
                return False
            first = start // BLOCK_TOKENS
            if request.window_tables or request.block_table[first:] != state.blocks[first:]:
                update.states[slot] = self._load_blocks(slot, state, start, update.changes)
        self._apply(update)
        return True

    def record_drawn(self, rows: Iterable[ScheduledRow], words: RowWords) -> None:
        """Record that the tokens sampled for these rows are on the device before anything launched later. Not those of
        rows with drafts: the host decides how many are accepted. The slots are those that were loaded: a request may
        have left its own by now."""
        for (_, start, tokens, samples, drafts), slot in zip(rows, words[:, 0].tolist(), strict=False):
            if samples and not drafts:
                self._tokens[slot] = start + tokens + 1

    def _update(self, words: RowWords) -> _Update:
        return _Update(Changes.of_table(self._arena.place(_Table.ROWS, 0), words.ravel()))

    def _apply(self, update: _Update) -> None:
        """Upload the changes, and record them."""
        self._ops.scatter_runs(self._arena.words, self._staging.upload(update.changes.words()), update.changes.runs)
        for slot, state in update.states.items():
            self._states[slot] = state
        for slot, tokens in update.tokens.items():
            self._tokens[slot] = tokens

    def _load_row(self, row: ScheduledRow, update: _Update) -> None:
        request = row.request
        slot = request.slot
        assert slot is not None
        state, known = self._states[slot], self._tokens[slot]
        if state is None or not state.belongs_to(request):
            state, known = SlotState(request, request.admissions), 0
            adapter = NO_ADAPTER if request.adapter_slot is None else request.adapter_slot
            update.changes.put(self._arena.place(_Table.ADAPTERS, slot), [adapter])
            for name, words in request_words(request, self._vocab_size).items():
                update.changes.put(self._arena.place(self._column_tables[name], slot), words)
        end = row.start + row.tokens - len(row.drafts)
        if row.drafts:
            assert len(row.drafts) <= MOST_DRAFTS, f"{request.id} exceeds {MOST_DRAFTS} drafts"
            update.changes.put(self._arena.place(_Table.DRAFTS, slot), row.drafts)
        self._load_tokens(slot, request, known, end, update)
        state = self._load_blocks(slot, state, row.start, update.changes)
        if row.samples and uses_counts(request.params):
            if state.counted == 0:
                update.new_counts.append(slot)
            update.countings.append(Counting(slot, state.counted, end, request.prompt_tokens))
            state = state._replace(counted=end)
        if state is not self._states[slot]:
            update.states[slot] = state

    def _load_tokens(self, slot: int, request: Request, known: int, end: int, update: _Update) -> None:
        """Upload the tokens from `known` to before `end`. One sampled in the step before may be known to the device
        only."""
        if end > known:
            words = request.tokens[known:end]
            assert known + len(words) == end, f"{request.id} has tokens that neither the host nor the device knows"
            update.changes.put(self._arena.place(_Table.TOKENS, slot, known), words)
        update.tokens[slot] = max(known, end)

    def _load_blocks(self, slot: int, state: SlotState, start: int, changes: Changes) -> SlotState:
        """Upload what changed in the slot's tables: blocks of computed tokens stay, those after them may be added,
        removed and replaced."""
        request = state.request
        first = min(start // BLOCK_TOKENS, len(state.blocks))
        tail = self._blocks_of(slot, request, first)
        blocks = self._load_table(_Table.BLOCK_TABLES, slot, state.blocks, first, tail, changes)
        windows = state.window_blocks
        if request.window_tables:
            lines = range(slot, len(request.window_tables) * self._num_slots, self._num_slots)
            known = windows or [()] * len(request.window_tables)
            windows = [
                self._load_table(_Table.WINDOW_TABLES, line, of_group, first, table[first:], changes)
                for line, table, of_group in zip(lines, request.window_tables, known, strict=True)
            ]
        if blocks is state.blocks and all(map(is_, windows, state.window_blocks)):
            return state
        return state._replace(blocks=blocks, window_blocks=windows)

    def _load_table(
        self, number: int, line: int, known: Sequence[int], first: int, tail: list[int], changes: Changes
    ) -> Sequence[int]:
        """Upload what changed in the line of a table, whose blocks from the one numbered `first` on are `tail`. Returns
        what is known of it then."""
        known_tail = list(known[first:])
        if tail == known_tail:
            return known
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tail, known_tail, strict=False)))
        changes.put(self._arena.place(number, line, first + same), tail[same:])
        return [*known[:first], *tail]

    def _blocks_of(self, slot: int, request: Request, first: int) -> list[int]:
        """The blocks of a slot's request from the one numbered `first` on."""
        blocks = request.block_table[first:]
        if self._spare_block is None:
            return blocks
        # A request of a model with a longer context may have more blocks than there is room for.
        return [*blocks, self._spare_block + slot][: self._most_blocks - first]

    def _counts(self) -> Tensor:
        if not self._counting:
            counts = torch.zeros(self.columns.counts.shape, dtype=torch.int32, device=self._arena.words.device)
            self.columns, self._counting = replace(self.columns, counts=counts), True
        return self.columns.counts
