"""Executes plans on a pipeline of ranks, with as many steps in flight as it has stages: the executor behind the
scheduler."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from engine.execution.parallel.parallel_model import Computed, HeldDraws, ParallelModel
from engine.execution.runner import Drawn, ModelRunner, PlacedStep, drawn_by_ranks
from engine.execution.sampler import DrawBatch
from engine.request import Phase
from engine.scheduling.plan import RowResult, StepPlan, StepResult
from kernels.arrays import Array, Ints, int_array


@dataclass(frozen=True, slots=True)
class PipelinedStep:
    """A step that is in a stage, or complete. `result` is called for steps in the order of their launches."""

    result: Callable[[], StepResult]


class _Current(NamedTuple):
    """The part of a step whose requests run as they did at its launch, and the places of its rows in the step."""

    step: PlacedStep
    hidden: Array
    drawn: Drawn
    places: list[int]


class PipelinedRunner(ModelRunner):
    """A `ModelRunner` of a model in stages.

    `execute` computes the first stage. What a step draws is stated at its launch, so that the last stage does not wait
    for this process; what needs the logits is drawn here when they arrive. By then, requests may have left their slots
    to others. Rows of such requests are dropped by the scheduler, and have no effect here either.
    """

    def __init__(
        self,
        model: ParallelModel,
        *,
        num_blocks: int,
        num_slots: int,
        max_model_len: int,
        num_states: int = 0,
        groups: int = 1,
    ) -> None:
        super().__init__(
            model,
            num_blocks=num_blocks,
            num_slots=num_slots,
            max_model_len=max_model_len,
            num_states=num_states,
            groups=groups,
        )
        self._pipeline = model

    @property
    def async_depth(self) -> int:
        return self._pipeline.stages - 1

    @property
    def micro_batches(self) -> int:
        return self._pipeline.stages

    def execute(self, plan: StepPlan) -> PipelinedStep:  # type: ignore[override]  # not finished yet
        """Launch a step: compute its first stage, which the others follow."""
        step = self._place(plan)
        draws, indices = step.draws
        batch = self._sampler.batch_of(draws) if draws else None
        held = None
        if batch is not None:
            drawn_from: Ints = np.arange(len(draws)) if indices is None else int_array(indices)
            held = HeldDraws(drawn_from, self._sampler.plain_columns_of(batch))
        computed = self._pipeline.begin(step.inputs.token_ids, step.step_rows, step.inputs.wanted, held)
        admissions = [row.request.admissions for row in step.rows]
        return PipelinedStep(lambda: self._complete(step, batch, admissions, computed()))

    def _complete(
        self, step: PlacedStep, batch: DrawBatch | None, admissions: Sequence[int], computed: Computed
    ) -> StepResult:
        drawn = self._drawn(batch, computed)
        requests = [row.request for row in step.rows]
        current = [
            request.phase is Phase.RUNNING and request.admissions == admitted
            for request, admitted in zip(requests, admissions, strict=True)
        ]
        if all(current):
            return self._finish(step, computed.hidden, drawn)
        part = _current(step, computed.hidden, drawn, current)
        results = [RowResult(token=0 if row.samples else None) for row in step.plan.rows]
        if part.places:
            finished = self._finish(part.step, part.hidden, part.drawn)
            order = step.inputs.order
            for place, result in zip(part.places, finished.rows, strict=True):
                results[place if order is None else order[place]] = result
        return StepResult(tuple(results))

    def _drawn(self, batch: DrawBatch | None, computed: Computed) -> Drawn:
        if batch is None:
            return Drawn([], [], frozenset(), [])
        if computed.drawn is not None:
            return drawn_by_ranks(*computed.drawn)
        assert computed.logits is not None, "draws are made on ranks or from logits"
        finite = self._ops.finite_rows(computed.logits).tolist()
        return Drawn(*self._sampler.sample_batch(computed.logits, batch), finite)


def _current(step: PlacedStep, hidden: Array, drawn: Drawn, current: Sequence[bool]) -> _Current:
    """The rows of a step that are `current`, with their hidden states and draws."""
    decoding, ends = len(step.inputs.decoding), step.inputs.ends.tolist()
    draw_counts = [1] * decoding + [len(row.drafts) + 1 if row.samples else 0 for row in step.rows[decoding:]]
    draw_ends = [0, *accumulate(draw_counts)]
    places = [place for place, is_current in enumerate(current) if is_current]
    states, draws, new_ends = list[int](), list[int](), list[int]()
    spans = list(pairwise([-1, *ends]))
    for place in places:
        before, end = spans[place]
        states += range(before + 1, end + 1)
        draws += range(draw_ends[place], draw_ends[place + 1])
        new_ends.append(len(states) - 1)
    kept = Drawn(
        [drawn.tokens[draw] for draw in draws],
        [drawn.logprobs[draw] for draw in draws],
        frozenset(number for number, draw in enumerate(draws) if draw in drawn.failed),
        [drawn.finite[draw] for draw in draws],
    )
    decode_draws = [step.inputs.decoding[place] for place in places if place < decoding]
    inputs = replace(step.inputs, order=None, ends=int_array(new_ends), decoding=decode_draws)
    part = replace(step, rows=[step.rows[place] for place in places], inputs=inputs)
    return _Current(part, hidden[states], kept, places)
