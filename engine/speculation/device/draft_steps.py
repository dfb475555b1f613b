"""The steps that carry out a plan of drafts, all known before the first one is launched."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.execution.device.graphs import GraphKey, GraphSizes
from engine.execution.device.inputs import START_WORD, RowWords, arrange
from engine.execution.device.sampler import SamplingNeeds, sampling_needs
from engine.scheduling.plan import ScheduledRow
from engine.speculation.draft_memory import ORDINARY_TOKENS, DraftRow
from kernels.step import StepShape


@dataclass(frozen=True, slots=True)
class DraftStep:
    """One step, whose rows have a draw each.

    words: the encoded rows, padding included. slots: of its rows. first: index of its first row among those of all
    steps. context_tokens: of its rows.
    """

    words: RowWords
    slots: Sequence[int]
    shape: StepShape
    key: GraphKey | None
    needs: SamplingNeeds
    first: int
    context_tokens: int


def draft_steps(rows: Sequence[DraftRow], graphs: GraphSizes) -> list[DraftStep]:
    """The steps of a plan's rows: the first one computes their tokens and draws a draft for each row with some; each
    further one computes the last draft and draws the next, for the rows with a greater depth."""
    planned = [ScheduledRow(row.request, row.start, row.tokens, row.depth > 0) for row in rows]
    steps = [_step(planned, graphs, 0, ORDINARY_TOKENS)]
    for drawn in range(1, max(row.depth for row in rows)):
        drafting = [row for row in rows if row.depth > drawn]
        last, ahead = steps[-1], drawn - 1
        further = _one_further(last, graphs) if drawn > 1 and len(drafting) == len(last.slots) else None
        if further is None:
            planned = [ScheduledRow(row.request, row.start + row.tokens + ahead, 1, True) for row in drafting]
            further = _step(planned, graphs, last.first + len(last.words), 1)
        steps.append(further)
    return steps


def _step(planned: Sequence[ScheduledRow], graphs: GraphSizes, first: int, decode_tokens: int) -> DraftStep:
    inputs = arrange(planned, graphs, decode_tokens=decode_tokens)
    needs = sampling_needs(inputs.rows, range(len(planned)))
    if needs.logprobs or needs.grammars:  # of the target alone
        needs = replace(needs, logprobs=[], tops=[], grammars=False)
    slots = inputs.words[: len(planned), 0].tolist()
    return DraftStep(inputs.words, slots, inputs.shape, inputs.key, needs, first, inputs.context_tokens)


def _one_further(step: DraftStep, graphs: GraphSizes) -> DraftStep | None:
    """The same rows, each one token further, in a fraction of the time of `_step`; None if the step is not replayed, or
    if what is added to logits may change."""
    context_tokens = step.context_tokens + len(step.slots)
    if step.key is None or step.needs.additions or context_tokens > graphs.context_tokens:
        return None
    words = step.words.copy()
    words[: len(step.slots), START_WORD] += 1
    first = step.first + len(words)
    return DraftStep(words, step.slots, step.shape, step.key, step.needs, first, context_tokens)
