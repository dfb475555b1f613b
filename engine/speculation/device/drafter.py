"""The draft model's steps on a GPU. The host waits for it once for each plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from engine.config import BLOCK_TOKENS, MOST_DRAFTS
from engine.execution.device.draws import Draws
from engine.execution.device.faults import device_errors
from engine.execution.device.graphs import (
    NO_GRAPHS,
    SHARED_CONTEXTS,
    Capture,
    GraphKey,
    GraphSizes,
    draft_model_sizes,
    most_lines,
)
from engine.execution.device.inputs import encoded, padding_rows, replayed_shape
from engine.execution.device.logprobs import to_host
from engine.execution.device.sampler import NO_NEEDS, DeviceSampler, Drawn
from engine.execution.device.slots import DeviceSlots
from engine.execution.device.staging import fences_of, on_device
from engine.execution.slots import slot_of
from engine.memory.kv_cache import BlockCopy
from engine.models.transformer import Transformer
from engine.request import Request
from engine.scheduling.plan import ScheduledRow
from engine.scheduling.stopping import is_end
from engine.speculation.device.draft_counts import DraftCounts
from engine.speculation.device.draft_steps import DraftStep, draft_steps
from engine.speculation.device.frequent_head import DeviceHead
from engine.speculation.draft_memory import DraftPlan, DraftRow
from kernels.step import ROW_WORDS, StepOps, StepShape, StepTensors

CATCH_UP_TOKENS = 1024
"""Maximum tokens per step, over all requests, with which the draft model catches up."""


@dataclass(frozen=True, slots=True)
class _ReplayedStep:
    """The two halves of a captured step. A step with other sampling needs replays the first half only: the `logits`
    [rows, V] of its `draws`."""

    forward: Callable[[], Tensor]
    draws: Draws
    draw: Callable[[], Drawn]


class DeviceDrafter:
    """A `Drafter` whose model is on a GPU.

    A drawn token goes from step to step in the row's slot. What else differs between the steps of a plan is uploaded
    before the first one. So nothing waits for the host, which reads the drafts of all steps at the end; those after a
    token that ends their request are dropped then.

    The slots' sequences have drafts after the tokens of their requests. The next plan's upload overwrites them.
    """

    catch_up_tokens = CATCH_UP_TOKENS

    def __init__(
        self,
        model: Transformer,
        step_ops: StepOps,
        head: DeviceHead,
        *,
        max_positions: int,
        num_blocks: int,
        num_slots: int,
    ) -> None:
        """`max_positions`: the model's maximum context."""
        assert model.config.linear is None, "a draft model has no recurrent states"
        self._model, self._ops, self._step_ops, self._head = model, model.ops, step_ops, head
        self._device = model.ops.device
        self._new_fence = fences_of(self._device)
        most_rows = max(num_slots, most_lines(num_slots))
        with torch.inference_mode():
            self._kv = model.allocate_kv(num_blocks + num_slots)
            self._slots = DeviceSlots(
                step_ops,
                self._device,
                num_slots=num_slots,
                num_rows=MOST_DRAFTS * most_rows,
                max_model_len=max_positions + BLOCK_TOKENS,
                vocab_size=model.config.vocab_size,
                spare_block=num_blocks,
            )
        self._sampler = DeviceSampler(model.ops, step_ops, self._slots)
        self.graph_sizes = draft_model_sizes(num_slots, SHARED_CONTEXTS * num_blocks * BLOCK_TOKENS, max_positions)
        self._lines = torch.zeros((most_lines(num_slots), ROW_WORDS), dtype=torch.int32, device=self._device)
        """The encoded rows of the step that is replayed."""
        self._captured = NO_GRAPHS
        self._graphs: dict[GraphKey, _ReplayedStep] = {}
        self.replayed_total = 0
        """Steps replayed from a CUDA graph."""

    @property
    def device(self) -> torch.device:
        return self._device

    @torch.inference_mode()
    def capture_graphs(self, capture: Capture, sizes: GraphSizes | None = None) -> None:
        """Capture the steps of these sizes; None: of all of few rows. Called between plans. If it fails, no step is
        replayed."""
        sizes = sizes or self.graph_sizes
        tokens, lines_of_all = (max(map(attrgetter(size), sizes.keys)) for size in ("tokens", "lines"))
        tensors = StepTensors.empty(lines_of_all, tokens, self._device)
        graphs: dict[GraphKey, _ReplayedStep] = {}
        # Every graph leaves its logits in the first rows: see `outputs.SharedOutputs`.
        logits = self._empty_logits(lines_of_all)
        for key in sizes.keys:
            lines, shape = self._lines[: key.lines], replayed_shape(key, sizes)
            lines.copy_(torch.from_numpy(encoded(padding_rows(key))))
            own = tensors.first(shape.rows, shape.tokens)
            graphs[key] = self._capture(capture, lines, own, shape, logits[: key.lines])
        self._graphs, self._captured = graphs, sizes

    @torch.inference_mode()
    def run(self, plan: DraftPlan) -> list[list[int]]:
        """See `Drafter.run`.

        Raises:
            OutOfDeviceMemory: the steps do not fit. The content of the KV memory is then unknown.
            DeviceLost: these steps, or earlier ones, broke the device.
        """
        with device_errors():
            self._copy_blocks(plan.copies)
            steps = draft_steps(plan.rows, self._captured)
            self._load(plan.rows, steps)
            counts = self._counts(plan.rows) if any(step.needs.penalties for step in steps) else None
            for index, step in enumerate(steps):
                self._launch(step, counts, last=index + 1 == len(steps))
            drafts = self._drawn(plan.rows)
        return [_up_to_end(row.request, tokens) for row, tokens in zip(plan.rows, drafts, strict=True)]

    def _copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        if copies:
            sources, targets = (on_device(blocks, torch.int64, self._device) for blocks in zip(*copies, strict=True))
            self._ops.copy_blocks(self._kv, sources, targets)

    def _load(self, rows: Sequence[DraftRow], steps: Sequence[DraftStep]) -> None:
        """Upload the rows of all steps, and the changes of their slots: from the first block on, as any block of a
        request may have changed."""
        loaded = [ScheduledRow(row.request, 0, row.start + row.tokens, row.depth > 0) for row in rows]
        self._slots.load(loaded, np.concatenate([step.words for step in steps]))

    def _counts(self, rows: Sequence[DraftRow]) -> DraftCounts:
        slots = [slot_of(row.request) for row in rows]
        return DraftCounts.of_slots(slots, self._slots.columns, self._slots.sequences)

    def _launch(self, step: DraftStep, counts: DraftCounts | None, *, last: bool) -> None:
        """Launch a step, and count its drafts unless it is the last one."""
        shape = step.shape
        lines = self._slots.rows[step.first : step.first + shape.rows]
        if step.key is not None:
            replayed = self._graphs[step.key]
            lines = self._lines[: shape.rows].copy_(lines)
            self.replayed_total += 1
            logits, draws = replayed.forward(), replayed.draws
            if step.needs.plain and counts is None:
                replayed.draw()
                return
        else:
            tensors = StepTensors.empty(shape.rows, shape.tokens, self._device)
            logits, draws = self._forward(lines, tensors, shape), Draws.after_rows(tensors, shape)
        if counts is None:
            self._sampler.draw(lines, logits, draws, step.needs)
            return
        counted = counts.lines_of(step.slots, shape.rows)
        sampler = DeviceSampler(self._ops, self._step_ops, counts)
        drawn = sampler.draw(lines, logits, replace(draws, row_slots=counted), step.needs)
        if not last:
            rows = len(step.slots)
            counts.add(counted[:rows], drawn.tokens[:rows])

    def _drawn(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """The drafts of each row, copied to the host."""
        tokens = self._slots.sequences.tokens
        places = [
            slot_of(row.request) * tokens.shape[1] + row.start + row.tokens + index
            for row in rows
            for index in range(row.depth)
        ]
        if not places:
            return [[] for _ in rows]
        drawn = to_host(tokens.flatten()[on_device(places, torch.int64, self._device)])
        fence = self._new_fence()
        fence.record()
        fence.synchronize()
        left = iter(drawn.tolist())
        return [[next(left) for _ in range(row.depth)] for row in rows]

    def _capture(
        self, capture: Capture, lines: Tensor, tensors: StepTensors, shape: StepShape, logits: Tensor
    ) -> _ReplayedStep:
        """Capture a step of `shape` over `tensors`, which leaves its logits in `logits`, sampled by the slots' columns
        alone."""
        draws = Draws.after_rows(tensors, shape)
        forward = capture(lambda: self._forward(lines, tensors, shape, logits))
        return _ReplayedStep(forward, draws, capture(lambda: self._sampler.draw(lines, logits, draws, NO_NEEDS)))

    def _empty_logits(self, rows: int) -> Tensor:
        vocab_size = self._model.config.vocab_size
        return torch.empty((rows, vocab_size), dtype=self._head.logits_dtype, device=self._device)

    def _forward(self, lines: Tensor, tensors: StepTensors, shape: StepShape, into: Tensor | None = None) -> Tensor:
        """Launch the model on encoded rows int32 [R, 8]: logits [R, V] after each. The launches depend on `shape`
        only. `into`: the memory of the logits; None: memory of their own."""
        sequences = self._slots.sequences
        self._step_ops.derive(lines, sequences, tensors, shape)
        plan = self._step_ops.plan_attention(tensors, sequences.block_tables, shape)
        hidden = self._model.forward(tensors.token_ids, plan, self._kv)
        return self._head.logits(Draws.after_rows(tensors, shape).hidden_of(hidden), into=into)


def _up_to_end(request: Request, drafts: list[int]) -> list[int]:
    """The drafts up to the first one that ends the request."""
    end = next((index for index, token in enumerate(drafts) if is_end(request, token)), len(drafts))
    return drafts[: end + 1]
