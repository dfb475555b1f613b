"""From a step's logits to tokens, on the device: what the rows ask for decides what is launched."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.execution.device.slots import DeviceSlots
from engine.execution.device.staging import on_device
from engine.execution.logprobs import Scores, measure
from engine.execution.slots import uses_counts
from engine.scheduling.plan import ScheduledRow
from kernels.ops import LogitEdits, Ops
from kernels.step import StepOps, StepTensors


@dataclass(frozen=True, slots=True)
class SamplingNeeds:
    """What the rows of a step that sample ask for beyond temperature.

    thresholds: whether any uses top-k, top-p or min-p. penalties: whether any looks at what came. additions: (row,
    token, value) to add to the logits. logprobs: the rows that want them, `tops` how many most likely tokens each.
    """

    thresholds: bool
    penalties: bool
    additions: list[tuple[int, int, float]]
    logprobs: list[int]
    tops: list[int]

    @property
    def plain(self) -> bool:
        return not (self.thresholds or self.penalties or self.additions or self.logprobs)


NO_NEEDS = SamplingNeeds(False, False, [], [], [])


@dataclass(frozen=True, slots=True)
class Drawn:
    """tokens: int64 [R], of no meaning where a row does not sample. sound: bool [R], whether the logits were finite.
    scores: of the rows that want log-probabilities, in their order."""

    tokens: Tensor
    sound: Tensor
    scores: Scores | None = None


class DeviceSampler:
    """Draws a token for each row and puts it into the row's sequence, where the next step finds it."""

    def __init__(self, ops: Ops, step_ops: StepOps, slots: DeviceSlots) -> None:
        self._ops, self._step_ops, self._slots = ops, step_ops, slots

    def draw(self, lines: Tensor, logits: Tensor, step: StepTensors, needs: SamplingNeeds) -> Drawn:
        """From logits float32 [R, V], which are overwritten, for lines of rows int32 [R, 8].

        Log-probabilities are the model's own: before penalties, biases, temperature and thresholds.
        """
        asking = on_device(needs.logprobs, torch.int64, logits.device) if needs.logprobs else None
        raw = None if asking is None else logits[asking]
        columns = self._slots.columns
        penalties = needs.penalties
        if needs.additions:
            if penalties:  # a penalty scales what the model said, not what was added
                self._step_ops.penalise(logits, columns, step.row_slots)
                penalties = False
            self._ops.edit_logits(logits, _edits(needs.additions, logits.device))
        tokens, sound = self._step_ops.sample_slots(
            logits,
            columns,
            step.row_slots,
            step.draw_positions,
            uses_thresholds=needs.thresholds,
            uses_penalties=penalties,
        )
        self._step_ops.store_drawn(lines, tokens, self._slots.sequences.tokens)
        if raw is None:
            return Drawn(tokens, sound)
        return Drawn(tokens, sound, measure(self._ops, raw, tokens[asking], max(needs.tops)))


def sampling_needs(rows: Sequence[ScheduledRow]) -> SamplingNeeds:
    """What a step's rows, in its order, ask of the sampler."""
    thresholds = penalties = False
    additions: list[tuple[int, int, float]] = []
    logprobs, tops = [], []
    for index, row in enumerate(rows):
        if not row.samples:
            continue
        params = row.request.params
        thresholds |= bool(params.temperature) and (bool(params.top_k or params.min_p) or params.top_p < 1.0)
        penalties |= uses_counts(params)
        additions += [(index, token, bias) for token, bias in params.logit_bias.items()]
        # By where the row stands: the output may be a token longer than the host knows.
        if params.min_tokens and row.start + row.tokens - row.request.prompt_tokens < params.min_tokens:
            stops = (*params.stop_token_ids, *row.request.eos_token_ids)
            additions += [(index, token, -math.inf) for token in dict.fromkeys(stops)]
        if params.logprobs is not None:
            logprobs.append(index)
            tops.append(params.logprobs)
    return SamplingNeeds(thresholds, penalties, additions, logprobs, tops)


def _edits(additions: Sequence[tuple[int, int, float]], device: torch.device) -> LogitEdits:
    none = on_device([], torch.int64, device)
    rows, tokens, values = zip(*additions, strict=True)
    return LogitEdits(
        none,
        none,
        none.float(),
        on_device(rows, torch.int64, device),
        on_device(tokens, torch.int64, device),
        on_device(values, torch.float32, device),
    )
