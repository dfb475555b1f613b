"""A step in flight: its results are copied to the host asynchronously and read by `result`."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from engine.execution.device.faults import device_errors
from engine.execution.device.inputs import StepInputs
from engine.execution.device.staging import Fence
from engine.execution.logprobs import Scores
from engine.execution.pooling import embedding_bytes
from engine.execution.sampler import accepted_drafts
from engine.request import Fault, TokenLogprob
from engine.scheduling.plan import RowResult, StepResult

_NOTHING_ELSE = RowResult()[4:]
_row_result: Callable[[tuple[Any, ...]], RowResult] = partial(tuple.__new__, RowResult)
"""A `RowResult` from a tuple of its fields, in half the time of the constructor."""


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Scores of prompt tokens of a row, with the `top` most likely ones in the place of each."""

    row: int
    top: int
    scores: Scores[Tensor]


@dataclass(frozen=True, slots=True)
class Constrained:
    """The draws of a step that grammars constrain.

    masked: indices of those that have a mask. failed: of those whose grammar failed. finite: bool [D], whether the
    hidden states of each draw's row are; on the host once the step's fence is passed.
    """

    masked: frozenset[int]
    failed: frozenset[int]
    finite: Tensor

    def faults(self, sound: Sequence[bool]) -> Set[int]:
        """The draws that are to be discarded because their grammar failed or allows no token. `sound`: whether the
        hidden states and masked logits of each draw are."""
        finite = self.finite.tolist()
        return self.failed | {index for index in self.masked if finite[index] and not sound[index]}


_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """All tensors are on the host once the fence is passed; rows of padding follow the others.

    tokens: int64 [D]. finite: bool [D]. scores: of the draws `scored`, each with its `tops[i]` most likely tokens.
    embeddings: float32 [H], by index of their row. constrained: None for a step without grammars.
    """

    inputs: StepInputs
    tokens: Tensor
    finite: Tensor
    scored: Sequence[int]
    tops: Sequence[int]
    scores: Scores[Tensor] | None
    prompt_scores: Sequence[PromptScores]
    embeddings: Mapping[int, Tensor]
    fence: Fence
    constrained: Constrained | None = None

    @property
    def plain(self) -> bool:
        """Whether each row has one token and nothing else as its result."""
        drafted = len(self.tokens) > len(self.inputs.words)
        return not drafted and self.scores is None and not self.prompt_scores and not self.embeddings

    def result(self) -> StepResult:
        """Wait for this step only.

        Raises:
            DeviceLost: this step, or an earlier one, broke the device.
        """
        with device_errors():
            self.fence.synchronize()
        rows = self.inputs.rows
        tokens, finite = self.tokens.tolist(), self.finite.tolist()
        faults = _NONE if self.constrained is None else self.constrained.faults(finite)
        if self.plain and not faults:
            places = self.inputs.places
            results = [(tokens[i] if rows[i][3] else None, None, (), finite[i], *_NOTHING_ELSE) for i in places]
            return StepResult(tuple(map(_row_result, results)))
        logprobs: list[TokenLogprob | None] = [None] * len(tokens)
        if self.scores is not None:
            for index, entry in zip(self.scored, self.scores.entries(self.tops), strict=True):
                logprobs[index] = entry
        prompt_logprobs: list[tuple[TokenLogprob, ...]] = [()] * len(rows)
        for piece in self.prompt_scores:
            prompt_logprobs[piece.row] += tuple(piece.scores.entries([piece.top] * len(piece.scores.tokens)))
        in_plan_order = [RowResult()] * len(rows)
        for index, (row, place) in enumerate(zip(rows, self.inputs.order, strict=True)):
            first = self.inputs.draw_starts[index]
            last = first + len(row.drafts)
            if not row.drafts:
                token = tokens[first] if row.samples else None
                result = RowResult(token, logprobs[first], prompt_logprobs[index], finite[first])
                in_plan_order[place] = _failed(result) if first in faults else result
            else:
                accepted = accepted_drafts(row.drafts, tokens[first:last])
                kept = first + accepted
                used = range(first, kept + 1)
                result = RowResult(
                    tokens[kept],
                    logprobs[kept],
                    # What a grammar leaves of the logits past the accepted drafts says nothing of the row.
                    finite=all(finite[draw] or draw in faults for draw in range(first, last + 1)),
                    accepted=accepted,
                    draft_logprobs=tuple(entry for entry in logprobs[first:kept] if entry is not None),
                )
                in_plan_order[place] = result if faults.isdisjoint(used) else _failed(result)
        for index, embedding in self.embeddings.items():
            place = self.inputs.order[index]
            in_plan_order[place] = in_plan_order[place]._replace(embedding=embedding_bytes(embedding.numpy()))
        return StepResult(tuple(in_plan_order))


def _failed(result: RowResult) -> RowResult:
    """The result of a row whose grammar failed."""
    return result._replace(finite=False, fault=Fault.GRAMMAR)


class MaskedStep:
    """A step with grammars: its forward pass is launched, and its draws once all steps before it are committed."""

    def __init__(self, launch_draws: Callable[[], DeviceStep]) -> None:
        self._launch_draws = launch_draws
        self._drawn: DeviceStep | None = None
        self._error: Exception | None = None

    def draw(self) -> DeviceStep:
        """Launch the draws, unless they are; an error of the launch is raised again by each call.

        Raises:
            OutOfDeviceMemory: the draws do not fit.
            DeviceLost: this step, or an earlier one, broke the device.
        """
        if self._error is not None:
            raise self._error
        if self._drawn is None:
            try:
                with device_errors():
                    self._drawn = self._launch_draws()
            except Exception as error:
                self._error = error
                raise
        return self._drawn

    def result(self) -> StepResult:
        """Wait for this step only. See `draw` for errors."""
        return self.draw().result()
