"""Inputs and outputs of preparing a step on the device: rows, slots, and what is derived from them.

Requests live in slots on the device between steps. A step names its rows and uploads the changes of their slots; the
device derives the rest. The ops are defined in `kernels.reference_step`. Letters in shapes are those of `kernels.ops`;
S slots, L tokens of the longest sequence, K drafts of a slot.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from kernels.ops import AttentionPlan, FiniteTokens, SlotDraws, SlotSampling

ROW_WORDS = 8
"""Words of an encoded row: the fields of `Row`."""

COUNTING_WORDS = 4
"""Words of an encoded `Counting`."""

SAVE_WORDS = 2
"""Words of an encoded `RowSave`."""


class Row(NamedTuple):
    """One row of a step, encoded as int32 [8].

    The row's tokens are `tokens` ones of the slot's sequence from `start` on; the last `drafts` of them are the slot's
    first drafts, which are not in the sequence. `first`: their offset in the step's tensors. For rows that `draw`, the
    sampled token is stored in the sequence after them.

    Negative `drafts`: the row follows as many drafts of the slot's last row, and begins earlier by those that were
    rejected. `follow_accepted` moves it, before anything else reads it.

    state: slot of the row's recurrent state; -1 for none. saves: the end of the row's lines in the step's table of
    `RowSave`; they follow those of the row before it.

    A row with a negative slot is padding: it has no context and no state, and reads and writes no KV.
    """

    slot: int
    start: int
    tokens: int
    drafts: int
    draws: int
    first: int
    state: int = -1
    saves: int = 0


class RowSave(NamedTuple):
    """A copy of a row's recurrent state after its first `tokens` tokens into state slot `slot`. Those of a row are
    ordered by `tokens`."""

    tokens: int
    slot: int


def row_words(rows: Iterable[Row]) -> list[int]:
    """The encoded rows, concatenated."""
    words: list[int] = []
    for row in rows:
        words += row
    return words


class Counting(NamedTuple):
    """Tokens [first, end) of a slot's sequence to be counted; those before `prompt_tokens` are the prompt."""

    slot: int
    first: int
    end: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class StepShape:
    """The size of a step as known to the host; determines which kernels are launched with which grids.

    Of `rows` rows with `tokens` tokens in total, the first `decode_rows` have at most `decode_queries` tokens each and
    at most `decode_context_tokens` of context in total, the others at most `extend_queries` tokens each and
    `extend_tokens` in total.

    `draws_each`: whether there is a draw after each token, needed or not, as for a step with drafts that is replayed.
    """

    rows: int
    tokens: int
    decode_rows: int
    decode_queries: int
    extend_queries: int
    extend_tokens: int
    decode_context_tokens: int
    draws_each: bool = False

    @property
    def most_queries(self) -> int:
        return max(self.decode_queries, self.extend_queries)


@dataclass(frozen=True, slots=True)
class StepTensors:
    """The tensors derived from a step's rows.

    token_ids, positions, slot_mapping: int64 [T]; a slot in KV memory is block id x 16 + offset, or -1 for none.
    token_rows: int32 [T], index of each token's row.
    query_starts: int32 [R + 1]. context_lens, row_slots: int32 [R]; a padding row's slot is 0 here.
    ends: int64 [R], index of each row's last token. draw_positions: int64 [R], index in its sequence of the token
        sampled after it.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    token_rows: Tensor
    query_starts: Tensor
    context_lens: Tensor
    row_slots: Tensor
    ends: Tensor
    draw_positions: Tensor

    @classmethod
    def empty(cls, rows: int, tokens: int, device: torch.device) -> Self:
        def wide(count: int) -> Tensor:
            return torch.empty(count, dtype=torch.int64, device=device)

        def narrow(count: int) -> Tensor:
            return torch.empty(count, dtype=torch.int32, device=device)

        return cls(
            token_ids=wide(tokens),
            positions=wide(tokens),
            slot_mapping=wide(tokens),
            token_rows=narrow(tokens),
            query_starts=narrow(rows + 1),
            context_lens=narrow(rows),
            row_slots=narrow(rows),
            ends=wide(rows),
            draw_positions=wide(rows),
        )

    def first(self, rows: int, tokens: int) -> Self:
        """The same memory for a smaller step."""
        return type(self)(
            self.token_ids[:tokens],
            self.positions[:tokens],
            self.slot_mapping[:tokens],
            self.token_rows[:tokens],
            self.query_starts[: rows + 1],
            self.context_lens[:rows],
            self.row_slots[:rows],
            self.ends[:rows],
            self.draw_positions[:rows],
        )


@dataclass(frozen=True, slots=True)
class Sequences:
    """The sequences of all slots.

    tokens: int32 [S, L]. block_tables: int32 [S, B]. drafts: int32 [S, K]. window_tables: as block_tables, of each
    group of KV after the first; entries of released blocks are -1.
    """

    tokens: Tensor
    block_tables: Tensor
    drafts: Tensor
    window_tables: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class DrawnPlaces:
    """Where drawn tokens are stored: in the sequence of each row that draws, after its tokens.

    lines: int32 [R, 8], the encoded rows. tokens: int32 [S, L]. rows: int32 [D], the row of each draw; last: integers
    [R], the last draw of each row, which is the one that is stored. None where draw d follows row d.
    """

    lines: Tensor
    tokens: Tensor
    rows: Tensor | None = None
    last: Tensor | None = None


class StepOps(Protocol):
    """The ops of a device around a model's forward pass.

    Definitions: `kernels.reference_step`, and `kernels.reference` for ops on logits. Features that no row uses may be
    skipped: thresholds are top-k, top-p and min-p.
    """

    def scatter_runs(self, words: Tensor, upload: Tensor, runs: int) -> None: ...

    def derive(self, rows: Tensor, sequences: Sequences, out: StepTensors, shape: StepShape) -> None: ...

    def plan_attention(self, step: StepTensors, block_tables: Tensor, shape: StepShape) -> AttentionPlan: ...

    def mask_rows(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None: ...

    def sample_slots(
        self,
        logits: Tensor,
        columns: SlotSampling,
        row_slots: Tensor,
        positions: Tensor,
        *,
        uses_thresholds: bool,
        uses_penalties: bool,
        places: DrawnPlaces,
        hidden: FiniteTokens | None = None,
    ) -> SlotDraws:
        """Sample, and store what is drawn."""
        ...

    def settled_tokens(self, rows: Tensor, drafts: Tensor, last: Tensor, drawn: Tensor) -> Tensor: ...

    def accept_drafts(
        self, rows: Tensor, sequences: Sequences, last: Tensor, drawn: Tensor, rejected: Tensor
    ) -> None: ...

    def follow_accepted(self, rows: Tensor, rejected: Tensor) -> None: ...

    def count_tokens(self, counts: Tensor, tokens: Tensor, countings: Tensor) -> None: ...
