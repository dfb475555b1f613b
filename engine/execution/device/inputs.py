"""A plan's rows as the kernels want them."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.execution.device.graphs import GraphKey, GraphSizes
from engine.scheduling.plan import ScheduledRow
from kernels.step import Row, StepShape


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step as it is launched.

    rows: the plan's rows in the order that the kernels want: those that decode, with drafts or without, by context
        length, then chunks.
    order: where each of them stands in the plan. lines: as the device knows them, filling rows behind.
    """

    rows: list[ScheduledRow]
    order: list[int]
    lines: list[Row]
    shape: StepShape
    key: GraphKey | None


def arrange(planned: Sequence[ScheduledRow], graphs: GraphSizes) -> StepInputs:
    """Put a plan's rows in order, and fill them up to a graph's size where they fit one."""
    keyed = sorted((not _decodes(row), row.start + row.tokens, place) for place, row in enumerate(planned))
    order = [place for _, _, place in keyed]
    rows = [planned[i] for i in order]
    decoding = [row for row in rows if _decodes(row)]
    context_tokens = sum(row.start + row.tokens for row in decoding)
    most_queries = max((row.tokens for row in decoding), default=0)
    singles = len(decoding) == len(rows) and most_queries == 1
    key = graphs.key_for(len(rows), 1, context_tokens) if singles else None
    if key is not None:
        return StepInputs(rows, order, _lines(rows) + filling(key)[len(rows) :], replayed_shape(key, graphs), key)
    shape = StepShape(
        rows=len(rows),
        tokens=sum(row.tokens for row in rows),
        decode_rows=len(decoding),
        decode_queries=most_queries,
        extend_queries=max((row.tokens for row in rows[len(decoding) :]), default=0),
        decode_context_tokens=context_tokens,
    )
    return StepInputs(rows, order, _lines(rows), shape, None)


def replayed_shape(key: GraphKey, graphs: GraphSizes) -> StepShape:
    """The shape of every step that replays a graph."""
    return StepShape(
        rows=key.rows,
        tokens=key.rows * key.tokens_each,
        decode_rows=key.rows,
        decode_queries=key.tokens_each,
        extend_queries=0,
        decode_context_tokens=graphs.context_tokens,
    )


def filling(key: GraphKey) -> list[Row]:
    """Lines of a step with nothing but filling rows."""
    each = key.tokens_each
    return [Row(slot=-1, start=0, tokens=each, drafts=0, draws=0, first=index * each) for index in range(key.rows)]


def _decodes(row: ScheduledRow) -> bool:
    """Is it of a request's last token, and drafts that follow it, alone?"""
    return row.tokens == 1 + len(row.drafts)


def _lines(rows: Sequence[ScheduledRow]) -> list[Row]:
    """What is drawn behind drafts is put into the sequence when it is known how many of them come before."""
    lines, first = [], 0
    for request, start, tokens, samples, drafts in rows:
        assert request.slot is not None
        lines.append(Row(request.slot, start, tokens, len(drafts), int(samples and not drafts), first))
        first += tokens
    return lines
