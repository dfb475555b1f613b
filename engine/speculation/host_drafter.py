"""The draft model's steps on the CPU."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.config import BLOCK_TOKENS
from engine.execution.slots import SlotTable, slot_of
from engine.models.host_model import HostModel
from engine.scheduling.plan import ScheduledRow
from engine.scheduling.stopping import is_end
from engine.speculation.draft_batch import DraftBatch
from engine.speculation.draft_head import DraftHead
from engine.speculation.draft_memory import ORDINARY_TOKENS, DraftPlan, DraftRow
from kernels.arrays import Array, int_array
from kernels.host import StepRows

CATCH_UP_TOKENS = 256
"""Maximum tokens per step, over all requests, with which the draft model catches up."""


class _Piece(NamedTuple):
    """Tokens of the sequence in a slot, which end at position `context`."""

    slot: int
    token_ids: Sequence[int]
    context: int


class HostDrafter:
    """A `Drafter` whose model computes on the CPU. Its KV memory: [layers, num_blocks + num_slots, 16, 2, Hkv, D]."""

    catch_up_tokens = CATCH_UP_TOKENS

    def __init__(
        self, model: HostModel, head: DraftHead, *, max_positions: int, num_blocks: int, num_slots: int
    ) -> None:
        """`max_positions`: the model's maximum context."""
        self._model = model
        self._head = head
        self._kv = model.allocate_kv(num_blocks + num_slots)
        self._slots = SlotTable(num_slots, max_positions + BLOCK_TOKENS, model.config.vocab_size)

    def run(self, plan: DraftPlan) -> list[list[int]]:
        for row in plan.rows:
            self._place(row)
        ops = self._model.ops
        if plan.copies:
            sources, targets = zip(*plan.copies, strict=True)
            ops.copy_blocks(self._kv, int_array(sources), int_array(targets))
        if plan.cleared and self._model.reads_past_context:
            ops.clear_blocks(self._kv, int_array(plan.cleared))
        return self._draft(plan.rows, self._catch_up(plan.rows))

    def _place(self, row: DraftRow) -> None:
        """Update the slot from the first block on, as any block of its request may have changed."""
        self._slots.update(ScheduledRow(row.request, 0, row.tokens, samples=True))
        blocks = len(row.request.block_table)
        self._slots.tables[slot_of(row.request), blocks] = row.block_table[blocks]

    def _catch_up(self, rows: Sequence[DraftRow]) -> Array:
        """Compute the rows' tokens. Returns the hidden state [R, H] of each row's last token.

        A row of at most `ORDINARY_TOKENS` tokens is computed as rows of one token each. Each of those reads the KV that
        the earlier ones store, and one-token rows are batched.
        """
        pieces: list[tuple[int, _Piece]] = []
        for index, (_, request, start, tokens, _, _) in enumerate(rows):
            step = 1 if tokens <= ORDINARY_TOKENS else tokens
            for first in range(start, start + tokens, step):
                token_ids = request.tokens[first : first + step]
                pieces.append((index, _Piece(slot_of(request), token_ids, first + step)))
        pieces.sort(key=lambda indexed: (len(indexed[1].token_ids) > 1, indexed[1].context))
        last = {index: place for place, (index, _) in enumerate(pieces)}
        hidden = self._forward([piece for _, piece in pieces])
        return hidden[[last[index] for index in range(len(rows))]]

    def _draft(self, rows: Sequence[DraftRow], hidden: Array) -> list[list[int]]:
        """Sample the drafts of all rows together, position by position, starting from the hidden state of each. A row
        stops after a token that ends its request."""
        drafts: list[list[int]] = [[] for _ in rows]
        drawing = [index for index, row in enumerate(rows) if row.depth]
        if not drawing:
            return drafts
        hidden = hidden if len(drawing) == len(rows) else hidden[drawing]
        batch = DraftBatch([rows[index] for index in drawing], self._slots)
        while True:
            drawn = self._head.draw(hidden, batch.changes(), batch.columns())
            stay = []
            for place, (index, token) in enumerate(zip(drawing, drawn.tolist(), strict=True)):
                row = rows[index]
                drafts[index].append(token)
                if len(drafts[index]) < row.depth and not is_end(row.request, token):
                    stay.append(place)
            if not stay:
                return drafts
            batch.append(drawn)
            if len(stay) < len(drawing):
                drawing = [drawing[place] for place in stay]
                drawn = drawn[stay]
                batch.keep(stay)
            hidden = self._model.forward(drawn, batch.step_rows(), self._kv)

    def _forward(self, pieces: Sequence[_Piece]) -> Array:
        """The hidden state [P, H] of the last token of each piece."""
        lengths = np.array([len(piece.token_ids) for piece in pieces])
        contexts = np.array([piece.context for piece in pieces])
        tables = self._slots.tables_of(np.array([piece.slot for piece in pieces]), contexts)
        token_ids = int_array([token for piece in pieces for token in piece.token_ids])
        wanted = None if len(token_ids) == len(pieces) else lengths.cumsum() - 1
        return self._model.forward(token_ids, StepRows(tables, lengths, contexts), self._kv, wanted)
