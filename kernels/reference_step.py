"""The definition of preparing a step on the device, in plain torch on the host: the oracle of `kernels.triton.step`.

Written for readability: one row and one run at a time.
"""

from dataclasses import replace
from itertools import pairwise, takewhile

import torch
from torch import Tensor

from kernels import reference
from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata, AttentionPlan, FiniteTokens, SlotDraws, SlotSampling
from kernels.reference_ops import ReferencePlan
from kernels.step import Counting, DrawnPlaces, Row, Sequences, StepShape, StepTensors


def scatter_runs(words: Tensor, upload: Tensor, runs: int) -> None:
    """Write the runs of an upload int32 [2 x runs + W] into `words` int32 [N].

    The upload has the start of each run among its last W words, then the target of each run, then the words. Runs do
    not overlap.
    """
    starts, targets, payload = upload[:runs].tolist(), upload[runs : 2 * runs].tolist(), upload[2 * runs :]
    for start, end, target in zip(starts, [*starts[1:], len(payload)], targets, strict=True):
        words[target : target + end - start] = payload[start:end]


def derive(rows: Tensor, sequences: Sequences, out: StepTensors) -> None:
    """Fill `out` from encoded rows int32 [R, 8]; see `Row` and `StepTensors`."""
    for index, row in enumerate(_rows(rows)):
        end = row.first + row.tokens
        out.query_starts[index], out.query_starts[index + 1] = row.first, end
        out.ends[index] = end - 1
        padding = row.slot < 0
        context = 0 if padding else row.start + row.tokens
        out.context_lens[index] = out.draw_positions[index] = context
        out.row_slots[index] = 0 if padding else row.slot
        for offset in range(row.tokens):
            position, at = row.start + offset, row.first + offset
            out.token_rows[at] = index
            if padding:
                out.token_ids[at], out.positions[at], out.slot_mapping[at] = 0, 0, -1
                continue
            draft = offset - (row.tokens - row.drafts)
            known, drafts = sequences.tokens[row.slot], sequences.drafts[row.slot]
            out.token_ids[at] = known[position] if draft < 0 else drafts[draft]
            out.positions[at] = position
            block = sequences.block_tables[row.slot, position // BLOCK_TOKENS]
            out.slot_mapping[at] = block * BLOCK_TOKENS + position % BLOCK_TOKENS


def store_drawn(places: DrawnPlaces, drawn: Tensor) -> None:
    """Store the last draw of each row that draws, of drawn int64 [D], after its tokens, if there is room."""
    of_rows, tokens = drawn if places.last is None else drawn[places.last], places.tokens
    for row, token in zip(_rows(places.lines), of_rows.tolist(), strict=True):
        position = row.start + row.tokens
        if row.slot >= 0 and row.draws and position < tokens.shape[1]:
            tokens[row.slot, position] = token


def settled_tokens(rows: Tensor, drafts: Tensor, last: Tensor, drawn: Tensor) -> Tensor:
    """Tokens of each row, int32 [R], without its rejected drafts: those after the first one that differs from the token
    drawn in its place.

    drafts int32 [S, K], drawn int64 [D]; last int64 [R], index of each row's last draw, which follows one for each of
    its drafts.
    """
    settled = []
    for row, end in zip(_rows(rows), last.tolist(), strict=True):
        proposed = drafts[max(row.slot, 0), : row.drafts].tolist()
        pairs = zip(proposed, drawn[end - row.drafts : end].tolist(), strict=True)
        accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        settled.append(row.tokens - row.drafts + accepted)
    return torch.tensor(settled, dtype=torch.int32, device=rows.device)


def accept_drafts(rows: Tensor, sequences: Sequences, last: Tensor, drawn: Tensor, rejected: Tensor) -> None:
    """Store the accepted drafts of each row, and the token drawn after them, in its sequence, as far as there is room.
    The number of the others is stored in rejected int32 [S] for its slot. Rows without drafts change nothing.

    last int64 [R] and drawn int64 [D] as in `settled_tokens`.
    """
    settled = settled_tokens(rows, sequences.drafts, last, drawn).tolist()
    for row, end, tokens in zip(_rows(rows), last.tolist(), settled, strict=True):
        if row.slot < 0 or row.drafts <= 0:
            continue
        rejected[row.slot] = row.tokens - tokens
        first, position = end - row.drafts, row.start + row.tokens - row.drafts
        kept = drawn[first : first + row.drafts - (row.tokens - tokens) + 1][: sequences.tokens.shape[1] - position]
        sequences.tokens[row.slot, position : position + len(kept)] = kept.int()


def follow_accepted(rows: Tensor, rejected: Tensor) -> None:
    """Move encoded rows int32 [R, 8] that follow drafts back by the rejected ones; rejected int32 [S]."""
    for line, row in zip(rows, _rows(rows), strict=True):
        if row.drafts < 0:
            line[Row._fields.index("start")] -= min(int(rejected[row.slot]), -row.drafts)
            line[Row._fields.index("drafts")] = 0


def count_tokens(counts: Tensor, tokens: Tensor, countings: Tensor) -> None:
    """Count tokens of sequences in counts int32 [S, V]: bit 0 for the prompt's, plus 2 for each occurrence in the
    output."""
    for line in countings.tolist():
        counting = Counting(*line)
        for position in range(counting.first, counting.end):
            token = int(tokens[counting.slot, position])
            if position < counting.prompt_tokens:
                counts[counting.slot, token] |= 1
            else:
                counts[counting.slot, token] += 2


def plan_attention(step: StepTensors, block_tables: Tensor, shape: StepShape) -> AttentionPlan:
    """The plan of a step whose rows' blocks are lines of block_tables int32 [S, B]."""
    starts = step.query_starts.tolist()
    metadata = AttentionMetadata(
        block_tables[step.row_slots.long()].long(),
        [end - start for start, end in pairwise(starts)],
        step.context_lens.tolist(),
        positions=step.positions,
        slot_mapping=step.slot_mapping,
    )
    return ReferencePlan(metadata)


class ReferenceStepOps:
    """The functions of this file and of `kernels.reference`, for any device."""

    def scatter_runs(self, words: Tensor, upload: Tensor, runs: int) -> None:
        scatter_runs(words, upload, runs)

    def derive(self, rows: Tensor, sequences: Sequences, out: StepTensors, shape: StepShape) -> None:
        derive(rows, sequences, out)

    def plan_attention(self, step: StepTensors, block_tables: Tensor, shape: StepShape) -> AttentionPlan:
        return plan_attention(step, block_tables, shape)

    def mask_rows(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        reference.mask_rows(logits, rows, bits)

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
        if not uses_penalties:
            columns = replace(columns, counts=torch.zeros_like(columns.counts))
        draws = reference.sample_slots(logits, columns, row_slots, positions, hidden)
        store_drawn(places, draws.ids)
        return draws

    def settled_tokens(self, rows: Tensor, drafts: Tensor, last: Tensor, drawn: Tensor) -> Tensor:
        return settled_tokens(rows, drafts, last, drawn)

    def accept_drafts(self, rows: Tensor, sequences: Sequences, last: Tensor, drawn: Tensor, rejected: Tensor) -> None:
        accept_drafts(rows, sequences, last, drawn, rejected)

    def follow_accepted(self, rows: Tensor, rejected: Tensor) -> None:
        follow_accepted(rows, rejected)

    def count_tokens(self, counts: Tensor, tokens: Tensor, countings: Tensor) -> None:
        count_tokens(counts, tokens, countings)


def _rows(rows: Tensor) -> list[Row]:
    return [Row(*line[: len(Row._fields)]) for line in rows.tolist()]
