"""Changes to a step's logits before sampling: biases and suppressed stop tokens, then penalties.

The order is vLLM V1's: penalties apply to the biased logits.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.execution.slots import SlotTable, slot_of, uses_counts
from engine.request import Request
from kernels.arrays import Floats, Ints, Words, int_array
from kernels.host import HostEdits, HostOps, HostPenalties

if TYPE_CHECKING:
    from engine.execution.sampler import Draw


class LogitChanges(NamedTuple):
    """Edits and penalties by token id; None where there are none."""

    edits: HostEdits | None = None
    penalties: HostPenalties | None = None

    def apply(self, ops: HostOps, logits: Floats) -> None:
        """Change logits float32 [R, V] in place."""
        if self.edits is not None:
            ops.edit_logits(logits, self.edits)
        if self.penalties is not None:
            ops.penalise(logits, self.penalties)


NO_CHANGES = LogitChanges()


def changes_anything(request: Request) -> bool:
    """Whether the request's sampling parameters change logits."""
    params = request.params
    return bool(params.min_tokens or params.logit_bias or uses_counts(params))


class BatchChanges:
    """The logit changes of a batch of draws. What is the same at every step is gathered once.

    A step costs O(rows + drafts) in Python, and the lengths of the arrays in native code.
    """

    def __init__(self, draws: "Sequence[Draw]", slots: SlotTable) -> None:
        self._draws, self._slots = draws, slots
        lines = int_array([slot_of(draw.request) for draw in draws])
        params = [draw.request.params for draw in draws]
        self._lines = lines if any(uses_counts(request_params) for request_params in params) else None
        self._repetition = slots.repetition_penalty[lines]
        self._presence = slots.presence_penalty[lines]
        self._frequency = slots.frequency_penalty[lines]
        self._biases = _joined(
            [(row, *slots.biases(slot)) for row, slot in enumerate(lines.tolist()) if params[row].logit_bias]
        )
        self._early = [(row, draw) for row, draw in enumerate(draws) if draw.request.params.min_tokens]
        self._drafted = [
            (row, int(lines[row]), draw)
            for row, draw in enumerate(draws)
            if draw.drafts and uses_counts(draw.request.params)
        ]

    def current(self) -> LogitChanges:
        """The changes for the next token of each draw."""
        return LogitChanges(self._current_edits(), self._current_penalties())

    def _current_edits(self) -> HostEdits | None:
        if not self._early:
            return self._biases
        forbidden = []
        for row, draw in self._early:
            request = draw.request
            if draw.position - request.prompt_tokens < request.params.min_tokens:
                stops = list(dict.fromkeys((*request.params.stop_token_ids, *request.eos_token_ids)))
                forbidden.append((row, int_array(stops), np.full(len(stops), -np.inf, dtype=np.float32)))
        more = _joined(forbidden)
        if more is None or self._biases is None:
            return more or self._biases
        both = self._biases, more
        return HostEdits(
            np.concatenate([edits.rows for edits in both]),
            np.concatenate([edits.tokens for edits in both]),
            np.concatenate([edits.values for edits in both]),
        )

    def _current_penalties(self) -> HostPenalties | None:
        if self._lines is None:
            return None
        seen = self._slots.seen
        rows, tokens, times = self._of_drafts()
        return HostPenalties(
            tokens=seen.tokens,
            times=seen.times,
            lines=self._lines,
            lengths=seen.lengths[self._lines],
            repetition=self._repetition,
            presence=self._presence,
            frequency=self._frequency,
            draft_rows=rows,
            draft_tokens=tokens,
            draft_times=times,
        )

    def _of_drafts(self) -> tuple[Ints, Ints, Words]:
        rows, tokens, times = list[int](), list[int](), list[int]()
        for row, slot, draw in self._drafted:
            for token in dict.fromkeys(draw.drafts):
                rows.append(row)
                tokens.append(token)
                times.append(self._slots.seen.times_of(slot, token) + draw.drafts.count(token))
        return int_array(rows), int_array(tokens), np.array(times, dtype=np.int32)


def _joined(parts: Sequence[tuple[int, Ints, Floats]]) -> HostEdits | None:
    """The edits of several rows, each with its tokens and values, as one."""
    if not parts:
        return None
    rows, tokens, values = zip(*parts, strict=True)
    return HostEdits(
        np.repeat(int_array(rows), [len(row_tokens) for row_tokens in tokens]),
        np.concatenate(tokens),
        np.concatenate(values),
    )
