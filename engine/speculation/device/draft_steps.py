"""The steps that carry out a plan of drafts, all known before the first one is launched."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.execution.device.graphs import GraphSizes
from engine.execution.device.inputs import StepInputs, arrange, continued
from engine.execution.device.sampler import SamplingNeeds, sampling_needs
from engine.scheduling.plan import ScheduledRow
from engine.speculation.draft_memory import ORDINARY_TOKENS, DraftRow


@dataclass(frozen=True, slots=True)
class DraftStep:
    """One step. `first`: index of its first line in the table of the rows of all steps. `slots`: of its rows.

    Its rows have no drafts, so each has one draw.
    """

    inputs: StepInputs
    needs: SamplingNeeds
    first: int
    slots: Sequence[int]


def draft_steps(rows: Sequence[DraftRow], graphs: GraphSizes) -> list[DraftStep]:
    """The steps of a plan's rows: the first one computes their tokens and draws a draft for each row with some; each
    further one computes the last draft and draws the next, for the rows with a greater depth."""
    planned = [ScheduledRow(row.request, row.start, row.tokens, row.depth > 0) for row in rows]
    inputs = arrange(planned, graphs, decode_tokens=ORDINARY_TOKENS)
    steps = [_step(inputs, 0)]
    for drawn in range(1, max(row.depth for row in rows)):
        ahead = drawn - 1
        planned = [
            ScheduledRow(row.request, row.start + row.tokens + ahead, 1, True) for row in rows if row.depth > drawn
        ]
        first = steps[-1].first + len(inputs.words)
        inputs = continued(inputs, planned, graphs) or arrange(planned, graphs)
        steps.append(_step(inputs, first))
    return steps


def _step(inputs: StepInputs, first: int) -> DraftStep:
    """Grammars and log-probabilities are the target's."""
    needs = replace(sampling_needs(inputs.rows, range(len(inputs.rows))), logprobs=[], tops=[], grammars=False)
    return DraftStep(inputs, needs, first, inputs.words[: len(inputs.rows), 0].tolist())
