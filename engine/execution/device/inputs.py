"""A plan's rows in the order that the kernels want."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Self

import numpy as np
import numpy.typing as npt

from engine.execution.device.graphs import GraphKey, GraphSizes
from engine.memory.sequence_states import StateSave
from engine.request import Request
from engine.scheduling.plan import ScheduledRow
from kernels.step import ROW_WORDS, Row, RowSave, StepShape, row_words

RowWords = npt.NDArray[np.int32]
"""Encoded rows, int32 [R, 8]."""

START_WORD = Row._fields.index("start")
DRAFTS_WORD = Row._fields.index("drafts")


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step as it is launched.

    rows: the plan's rows in kernel order: decode rows, with or without drafts, by context length, then prefill chunks.
    order: place of each row in the plan. places: the row of each place. words: the rows as encoded for the device,
    followed by padding rows. draw_starts: index of each row's first draw. context_tokens: of the decode rows.
    saves: of recurrent states, in the order of the rows. adapted: whether a row has an adapter.
    """

    rows: list[ScheduledRow]
    order: list[int]
    places: list[int]
    words: RowWords
    draw_starts: Sequence[int]
    shape: StepShape
    key: GraphKey | None
    context_tokens: int
    saves: Sequence[RowSave] = ()
    adapted: bool = False

    @property
    def drafted_tokens(self) -> int:
        """Tokens of the rows up to the last one with drafts; 0 if there is none."""
        ends = [line.first + line.tokens for line in self.lines if line.drafts > 0]
        return ends[-1] if ends else 0

    @property
    def follows_drafts(self) -> bool:
        """Whether a row follows drafts whose result the host may not know."""
        return bool((self.words[:, DRAFTS_WORD] < 0).any())

    @property
    def ends(self) -> list[int]:
        """Index in the step's tensors of each row's last token."""
        if self.key is not None and self.key.tokens_each == 1:
            return list(range(len(self.rows)))
        return [line.first + line.tokens - 1 for line in self.lines[: len(self.rows)]]

    @property
    def lines(self) -> list[Row]:
        """The encoded rows."""
        return [Row(*line[: len(Row._fields)]) for line in self.words.tolist()]


def arrange(
    planned: Sequence[ScheduledRow],
    graphs: GraphSizes,
    state_saves: Sequence[StateSave] = (),
    *,
    decode_tokens: int = 1,
) -> StepInputs:
    """Order a plan's rows, and pad them to a graph's size where they fit one. `decode_tokens`: the most tokens of a
    decode row, besides its drafts."""

    def decodes(row: ScheduledRow) -> bool:
        return row.tokens <= decode_tokens + len(row.drafts)

    keyed = sorted((not decodes(row), row.start + row.tokens, place) for place, row in enumerate(planned))
    order = [place for _, _, place in keyed]
    rows = [planned[i] for i in order]
    places = sorted(range(len(order)), key=order.__getitem__)
    decoding = [row for row in rows if decodes(row)]
    context_tokens = sum(row.start + row.tokens for row in decoding)
    most_queries = max((row.tokens for row in decoding), default=0)
    adapted = any(row.request.adapter_slot is not None for row in rows)
    key = None
    if len(decoding) == len(rows):
        key = graphs.key_for(len(rows), most_queries, context_tokens, adapted=adapted)
    lines, saves = _lines(rows), list[RowSave]()
    if state_saves:
        lines, saves = _with_saves(lines, rows, state_saves)
    if key is not None:
        words = encoded(lines + padding_rows(key, len(lines), sum(row.tokens for row in rows)))
        starts = [line.first + line.tokens - 1 - line.drafts for line in lines]
        shape = replayed_shape(key, graphs)
        return StepInputs(rows, order, places, words, starts, shape, key, context_tokens, saves, adapted)
    extending = [row.tokens for row in rows[len(decoding) :]]
    shape = StepShape(
        rows=len(rows),
        tokens=sum(row.tokens for row in rows),
        decode_rows=len(decoding),
        decode_queries=most_queries,
        extend_queries=max(extending, default=0),
        extend_tokens=sum(extending),
        decode_context_tokens=context_tokens,
    )
    starts = [0, *accumulate(1 + len(row.drafts) for row in rows)][:-1]
    return StepInputs(rows, order, places, encoded(lines), starts, shape, None, context_tokens, saves, adapted)


def continued(last: StepInputs, planned: Sequence[ScheduledRow], graphs: GraphSizes) -> StepInputs | None:
    """The inputs of a step that replays the graph of the last one for the same rows, each one token further; None if it
    is another step. Equal to those of `arrange`, in a fifth of the time: most steps of a busy server are such ones."""
    context_tokens = last.context_tokens + len(planned)
    if (
        last.key is None
        or last.key.tokens_each > 1
        or last.saves
        or len(planned) != len(last.rows)
        or context_tokens > graphs.context_tokens
    ):
        return None
    rows = [planned[place] for place in last.order]
    for (request, start, tokens, samples, drafts), before in zip(rows, last.rows, strict=True):
        if request is not before[0] or start != before[1] + 1 or tokens != 1 or not samples or drafts:
            return None
        if not before[3]:  # a prompt's last chunk but one; what its sampling needs was not looked at
            return None
    words = last.words.copy()
    words[: len(rows), START_WORD] += 1
    return replace(last, rows=rows, words=words, context_tokens=context_tokens)


@dataclass(frozen=True, slots=True)
class DraftedRows:
    """The rows with drafts of the step that was launched last: of each request, the end of its row, its drafts, and its
    admissions."""

    rows: Mapping[Request, tuple[int, int, int]]

    @classmethod
    def of(cls, rows: Sequence[ScheduledRow]) -> Self:
        drafted = [row for row in rows if row.drafts]
        return cls({row.request: (row.start + row.tokens, len(row.drafts), row.request.admissions) for row in drafted})

    def mark(self, inputs: StepInputs) -> None:
        """Mark the encoded rows without drafts that begin where these end: they are moved back by the rejected
        drafts, of which there are none if the host knows where the row begins."""
        if not self.rows:
            return
        for line, row in zip(inputs.words, inputs.rows, strict=False):
            end, drafts, admissions = self.rows.get(row.request, (-1, 0, 0))
            if row.start == end and not row.drafts and row.request.admissions == admissions:
                line[DRAFTS_WORD] = -drafts


NO_DRAFTED_ROWS = DraftedRows({})


def replayed_shape(key: GraphKey, graphs: GraphSizes) -> StepShape:
    """The shape of every step that replays a graph."""
    return StepShape(
        rows=key.lines,
        tokens=key.tokens,
        decode_rows=key.lines,
        decode_queries=key.tokens_each,
        extend_queries=0,
        extend_tokens=0,
        decode_context_tokens=graphs.context_of(key),
        draws_each=key.tokens_each > 1,
    )


def encoded(lines: Sequence[Row]) -> RowWords:
    """The words of rows."""
    return np.array(row_words(lines), np.int32).reshape(-1, ROW_WORDS)


def padding_rows(key: GraphKey, rows: int = 0, tokens: int = 0) -> list[Row]:
    """The encoded rows of padding that follow `rows` rows with `tokens` tokens in all."""
    padding = []
    for _ in range(rows, key.lines):
        taken = min(key.tokens_each, key.tokens - tokens)
        padding.append(Row(slot=-1, start=0, tokens=taken, drafts=0, draws=0, first=tokens))
        tokens += taken
    assert tokens == key.tokens, "rows have fewer tokens than one each"
    return padding


def _lines(rows: Sequence[ScheduledRow]) -> list[Row]:
    """The encoded rows. Tokens sampled after drafts are stored later, once the number of accepted drafts is known."""
    lines, first = [], 0
    for request, start, tokens, samples, drafts in rows:
        assert request.slot is not None
        state = -1 if request.state is None else request.state
        lines.append(Row(request.slot, start, tokens, len(drafts), int(samples and not drafts), first, state))
        first += tokens
    return lines


def _with_saves(
    lines: Sequence[Row], rows: Sequence[ScheduledRow], state_saves: Sequence[StateSave]
) -> tuple[list[Row], list[RowSave]]:
    """Rows with their saves, and these."""
    by_request: dict[Request, list[RowSave]] = {}
    starts = {row.request: row.start for row in rows}
    for request, position, slot in state_saves:
        by_request.setdefault(request, []).append(RowSave(position - starts[request], slot))
    saves, with_saves = list[RowSave](), []
    for line, row in zip(lines, rows, strict=True):
        saves += sorted(by_request.get(row.request, ()))
        with_saves.append(line._replace(saves=len(saves)))
    return with_saves, saves
