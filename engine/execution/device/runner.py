"""Executes a plan on a GPU asynchronously: the executor behind the scheduler."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from engine.execution.device.counts import DeviceCounts
from engine.execution.device.draws import Draws
from engine.execution.device.faults import device_errors
from engine.execution.device.graphs import (
    NO_GRAPHS,
    SHARED_CONTEXTS,
    Capture,
    GraphKey,
    GraphSizes,
    graph_sizes,
    most_lines,
)
from engine.execution.device.inputs import (
    NO_DRAFTED_ROWS,
    DraftedRows,
    StepInputs,
    arrange,
    continued,
    encoded,
    padding_rows,
    replayed_shape,
)
from engine.execution.device.logprobs import measure, on_host, to_host
from engine.execution.device.masks import DrawMasks, grammar_masks
from engine.execution.device.outputs import Forwarded, SharedOutputs, hidden_states
from engine.execution.device.pending import Constrained, DeviceStep, MaskedStep, PromptScores
from engine.execution.device.pooling import DeviceSums
from engine.execution.device.replays import ReplayedStep, captured_settling, counted
from engine.execution.device.sampler import NO_NEEDS, DeviceSampler, Drawn, SamplingNeeds, sampling_needs
from engine.execution.device.slots import DeviceSlots
from engine.execution.device.staging import fences_of, on_device
from engine.execution.device.states import StateMemory
from engine.execution.logprobs import LOGPROB_ROWS, predicted_prompt_tokens
from engine.execution.pooling import Pooler
from engine.models.transformer import Transformer
from engine.scheduling.plan import BlockCopy, LaunchStats, PendingStep, StepPlan
from kernels.adapters import AdapterWeights, PackedAdapter
from kernels.device_adapters import DeviceAdapters, StepAdapters
from kernels.device_states import DeviceStates
from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionPlan, CheckedRows, FiniteTokens
from kernels.step import StepOps, StepShape, StepTensors


class DeviceRunner:
    """A model, its KV memory and a slot for each running request, all on one device.

    A step may be launched before the result of the one before it is known: the token that a row starts from is then on
    the device only. Steps run in order, so earlier steps have read whatever a later one overwrites.

    Unlike the CPU's, the device's attention reads nothing past a row's context, so blocks are not cleared.
    """

    def __init__(
        self,
        model: Transformer,
        step_ops: StepOps,
        *,
        num_blocks: int,
        num_slots: int,
        max_model_len: int,
        num_states: int = 0,
    ) -> None:
        """`num_states`: state slots of a model with recurrent layers."""
        self._model, self._ops, self._step_ops = model, model.ops, step_ops
        self._device = model.ops.device
        self._num_slots = num_slots
        self._vocab_size = model.config.vocab_size
        self._context_tokens = min(SHARED_CONTEXTS * num_blocks * BLOCK_TOKENS, num_slots * max_model_len)
        self._new_fence = fences_of(self._device)
        self._expert_tokens = DeviceCounts(model.expert_tokens)
        with torch.inference_mode():
            self._kv = model.allocate_kv(num_blocks)
            self._states = StateMemory(model.allocate_states(num_states)) if num_states else None
            self._slots = DeviceSlots(
                step_ops,
                self._device,
                num_slots=num_slots,
                num_rows=max(num_slots, most_lines(num_slots)),
                max_model_len=max_model_len,
                vocab_size=self._vocab_size,
                num_states=num_states,
                groups=model.kv_groups,
            )
        self._sampler = DeviceSampler(model.ops, step_ops, self._slots)
        self._pooler = Pooler(DeviceSums())
        self._graph_sizes = NO_GRAPHS
        self._graphs: dict[GraphKey, ReplayedStep] = {}
        self.launches = LaunchStats()
        self._last: tuple[StepInputs, SamplingNeeds] | None = None
        """The step that was launched last, unless its launch failed or its rows follow drafts."""
        self._drafted = NO_DRAFTED_ROWS
        self._undrawn: MaskedStep | None = None
        """The step that was launched last, where its draws are not."""

    @property
    def async_depth(self) -> int:
        return 1

    @property
    def micro_batches(self) -> int:
        return 1

    @property
    def takes_drafts(self) -> bool:
        return True

    @property
    def accepts_drafts(self) -> bool:
        """Whether a step may follow drafts in flight: see `DeviceSlots.accepts_drafts`."""
        return self._slots.accepts_drafts

    @property
    def expert_tokens(self) -> tuple[int, ...]:
        return self._expert_tokens.read()

    def graph_sizes(self, *, drafts: bool) -> GraphSizes:
        """The sizes of the steps to replay, also of those with drafts if there will be `drafts`."""
        adapted = self._model.adapters is not None
        return graph_sizes(self._num_slots, self._context_tokens, drafts=drafts, adapted=adapted)

    @torch.inference_mode()
    def allocate_adapters(self, slots: int, max_rank: int) -> None:
        """Slots for adapters of at most `max_rank`, all empty, unless the model has some. Before the capture of
        graphs."""
        if self._model.adapters is None:
            self._model.allocate_adapters(slots, max_rank)

    @property
    def adapter_layout(self) -> None:
        """See `engine.runtime.adapter_loading.AdapterMemory`."""
        return None

    @torch.inference_mode()
    def pack_adapter(self, weights: AdapterWeights) -> PackedAdapter:
        """See `DeviceAdapters.pack`."""
        return self._adapters.pack(weights)

    @torch.inference_mode()
    def put_adapter(self, slot: int, packed: Any | None) -> None:
        """See `DeviceAdapters.put`. Called between steps."""
        with device_errors():
            self._adapters.put(slot, packed)

    def is_resident(self, slot: int) -> bool:
        """See `DeviceAdapters.is_resident`."""
        with device_errors():
            return self._adapters.is_resident(slot)

    @property
    def _adapters(self) -> DeviceAdapters:
        assert self._model.adapters is not None, "the model has no memory for adapters"
        return self._model.adapters

    @torch.inference_mode()
    def capture_graphs(self, capture: Capture, sizes: GraphSizes | None = None) -> None:
        """Capture decode steps of these sizes; None: of all without drafts. Called between steps. If it fails, no step
        is replayed."""
        sizes = sizes or self.graph_sizes(drafts=False)
        tokens, lines = (max(map(attrgetter(size), sizes.keys)) for size in ("tokens", "lines"))
        tensors = StepTensors.empty(lines, tokens, self._device)
        graphs: dict[GraphKey, ReplayedStep] = {}
        outputs: SharedOutputs | None = None
        for key in sizes.keys:
            self._slots.load((), encoded(padding_rows(key)))
            shape = replayed_shape(key, sizes)
            own = tensors.first(shape.rows, shape.tokens)
            outputs = outputs or SharedOutputs.allocate(self._model, shape.tokens)
            graphs[key] = self._capture(capture, own, shape, outputs, adapted=key.adapted)
        self._model.release_drafts()
        self._graphs, self._graph_sizes = graphs, sizes

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> PendingStep:
        """Launch the plan's rows and the draws of those that sample.

        With grammars only the rows are launched. Their draws follow with the next step, or when the result is wanted:
        by then all steps before this one are committed, and the grammars know their tokens.

        Raises:
            OutOfDeviceMemory: the step does not fit. A step of the same requests may follow.
            DeviceLost: an earlier step broke the device, or this launch did.
        """
        with device_errors():
            if self._undrawn is not None:
                undrawn, self._undrawn = self._undrawn, None
                undrawn.draw()
            return self._launch(plan)

    def _launch(self, plan: StepPlan) -> PendingStep:
        self._copy_blocks(plan.copies)  # before anything that may fail, as a copy is not repeated
        if self._states is not None and plan.states is not None:
            self._states.copy(plan.states.copies)
        further = self._continue(plan)
        inputs, needs = further or self._begin(plan)
        self._last = None
        settle: Callable[[Tensor], None] | None = None
        if inputs.key is None:
            tensors = StepTensors.empty(inputs.shape.rows, inputs.shape.tokens, self._device)
            draws = Draws.after_drafts(inputs.rows, inputs.lines, self._device) if plan.draft_tokens else None
            states = self._device_states(tensors, inputs.shape, inputs.drafted_tokens if plan.draft_tokens else 0)
            forwarded = self._forward(tensors, inputs.shape, draws, states, adapted=inputs.adapted)
            draw = None
            if states is not None and states.drafted_tokens:
                settle = partial(self._settle, states)
        else:
            replayed = self._graphs[inputs.key]
            forwarded, draw, settle = replayed.forward(), replayed.draw if needs.plain else None, replayed.settle
        prompt_scores = [] if further else self._prompt_scores(inputs, forwarded.hidden)
        pools = further is None
        finish = partial(self._finish, inputs, needs, forwarded, draw, prompt_scores, settle, pools=pools)
        step: DeviceStep | MaskedStep
        if needs.grammars:
            step = self._undrawn = MaskedStep(finish)
        else:
            step = finish()
        self.launches, self._last = (
            counted(self.launches, inputs),
            None if self._drafted.rows and inputs.follows_drafts else (inputs, needs),
        )
        followed = plan.draft_tokens and self.accepts_drafts
        self._drafted = DraftedRows.of(inputs.rows) if followed else NO_DRAFTED_ROWS
        return step

    @torch.inference_mode()
    def _finish(
        self,
        inputs: StepInputs,
        needs: SamplingNeeds,
        forwarded: Forwarded,
        draw: Callable[[], Drawn] | None,
        prompt_scores: Sequence[PromptScores],
        settle: Callable[[Tensor], None] | None,
        *,
        pools: bool,
    ) -> DeviceStep:
        """Launch the draws of a step, or replay `draw`, and the copies of all results to the host. `settle`: see
        `ReplayedStep`. `pools`: whether rows may have embeddings."""
        masks = self._masks(inputs) if needs.grammars else None
        drawn = self._draw(forwarded, inputs.shape, needs, masks) if draw is None else draw()
        rows, last = self._slots.rows[: inputs.shape.rows], forwarded.draws.last
        if settle is not None:
            assert last is not None, "the step has no drafts"
            # By a number that only the device knows.
            settle(self._step_ops.settled_tokens(rows, self._slots.sequences.drafts, last, drawn.tokens))
        if last is not None and self.accepts_drafts:
            self._slots.accept_drafts(rows, last, drawn.tokens)
        # The last allocation that may fail.
        embeddings = self._embeddings(inputs, forwarded.hidden) if pools else {}
        self._slots.record_drawn(inputs.rows, inputs.words)
        constrained = None
        if masks is not None:
            assert drawn.finite is not None, "hidden states were not checked"
            constrained = Constrained(masks.masked, masks.failed, to_host(drawn.finite))
        fence = self._new_fence()
        step = DeviceStep(
            inputs=inputs,
            tokens=to_host(drawn.tokens),
            finite=to_host(drawn.sound),
            scored=needs.logprobs,
            tops=needs.tops,
            scores=None if drawn.scores is None else on_host(drawn.scores),
            prompt_scores=prompt_scores,
            embeddings={index: to_host(embedding) for index, embedding in embeddings.items()},
            fence=fence,
            constrained=constrained,
        )
        fence.record()
        return step

    def _begin(self, plan: StepPlan) -> tuple[StepInputs, SamplingNeeds]:
        """Load a step."""
        inputs = arrange(plan.rows, self._graph_sizes, () if plan.states is None else plan.states.saves)
        self._drafted.mark(inputs)
        self._slots.load(inputs.rows, inputs.words, inputs.saves)
        if self._drafted.rows:
            self._slots.follow_accepted(self._slots.rows[: inputs.shape.rows])
        return inputs, sampling_needs(inputs.rows, inputs.draw_starts)

    def _continue(self, plan: StepPlan) -> tuple[StepInputs, SamplingNeeds] | None:
        """Load a step of the rows of the last one, which was replayed, each one token further; None, with nothing
        loaded, if it is another step."""
        if self._last is None or plan.draft_tokens or (plan.states is not None and plan.states.saves):
            return None
        last, needs = self._last
        if needs.additions or needs.penalties:  # they change from token to token
            return None
        inputs = continued(last, plan.rows, self._graph_sizes)
        if inputs is None or not self._slots.advance(inputs.rows, inputs.words):
            return None
        return inputs, needs

    def _capture(
        self, capture: Capture, tensors: StepTensors, shape: StepShape, outputs: SharedOutputs, *, adapted: bool
    ) -> ReplayedStep:
        """Capture a step of `shape` over `tensors`, sampled by the slots' columns alone."""
        states = self._device_states(tensors, shape, shape.tokens if shape.draws_each else 0)
        # A draw for each token: there is one token for each row, or drafts follow the others.
        into = outputs.hidden(shape.tokens), outputs.logits(shape.tokens)
        forward = capture(lambda: self._forward(tensors, shape, states=states, into=into, adapted=adapted))
        forwarded = forward()
        draw = capture(lambda: self._draw(forwarded, shape, NO_NEEDS))
        if states is None or not states.drafted_tokens:
            return ReplayedStep(forward, draw)
        return ReplayedStep(forward, draw, captured_settling(capture, self._model, states))

    def _masks(self, inputs: StepInputs) -> DrawMasks:
        return grammar_masks(inputs.rows, inputs.draw_starts, self._vocab_size, self._device)

    def _draw(
        self, forwarded: Forwarded, shape: StepShape, needs: SamplingNeeds, masks: DrawMasks | None = None
    ) -> Drawn:
        lines = self._slots.rows[: shape.rows]
        return self._sampler.draw(lines, forwarded.logits, forwarded.draws, needs, masks, forwarded.finite)

    def _device_states(self, tensors: StepTensors, shape: StepShape, drafted_tokens: int = 0) -> DeviceStates | None:
        """The states of the rows that are loaded."""
        if self._states is None:
            return None
        rows, memory = self._slots.rows[: shape.rows], self._states.memory
        return DeviceStates(memory, rows, tensors.token_rows, self._slots.saves, drafted_tokens)

    def _settle(self, states: DeviceStates, tokens: Tensor) -> None:
        """Advance the states of rows with drafts in the step that was launched last: see `ReplayedStep`."""
        self._model.settle_on_device(states, tokens)
        self._model.release_drafts()

    def _forward(
        self,
        tensors: StepTensors,
        shape: StepShape,
        draws: Draws | None = None,
        states: DeviceStates | None = None,
        into: tuple[CheckedRows, Tensor] | None = None,
        *,
        adapted: bool = False,
    ) -> Forwarded:
        """Launch the model on the rows that are loaded; samples after each row or, with `draws`, after drafts too. The
        launches depend on `shape` and `adapted` only. `into`: memory for the hidden states and the logits; None: memory
        of their own. `adapted`: whether rows may have adapters."""
        plan, *window_plans = self._attention_plans(tensors, shape)
        adapters = self._step_adapters(tensors, shape) if adapted else None
        checked, logits = into or (hidden_states(self._model, shape.tokens), None)
        hidden = self._model.forward(tensors.token_ids, plan, self._kv, states, window_plans, adapters, into=checked)
        if draws is None:
            draws = Draws.after_tokens(tensors) if shape.draws_each else Draws.after_rows(tensors, shape)
        finite = FiniteTokens(checked.finite, tensors.query_starts, draws.rows)
        return Forwarded(draws, hidden, finite, self._model.logits(draws.hidden_of(hidden), into=logits))

    def _step_adapters(self, tensors: StepTensors, shape: StepShape) -> StepAdapters:
        rows, adapters = self._slots.rows[: shape.rows], self._slots.adapters
        return self._adapters.of_step(rows, tensors.token_rows, tensors.slot_mapping, adapters)

    def _attention_plans(self, tensors: StepTensors, shape: StepShape) -> list[AttentionPlan]:
        """Derive the step's tensors from its rows: the plan of each group of KV. All but the slots of the tokens is the
        same in each group."""
        ops, rows, sequences = self._step_ops, self._slots.rows[: shape.rows], self._slots.sequences
        plans = []
        for number, tables in enumerate((sequences.block_tables, *sequences.window_tables)):
            of_group = tensors
            if number:
                of_group = replace(tensors, slot_mapping=torch.empty_like(tensors.slot_mapping))
            ops.derive(rows, replace(sequences, block_tables=tables), of_group, shape)
            plans.append(ops.plan_attention(of_group, tables, shape))
        return plans

    def _embeddings(self, inputs: StepInputs, hidden: Tensor) -> Mapping[int, Tensor]:
        """Embeddings of the prompts that the step completes, by index of their row."""
        return self._pooler.pool(inputs.rows, inputs.ends, hidden)

    def _copy_blocks(self, copies: tuple[BlockCopy, ...]) -> None:
        if copies:
            sources = on_device([copy.source for copy in copies], torch.int64, self._device)
            targets = on_device([copy.target for copy in copies], torch.int64, self._device)
            self._ops.copy_blocks(self._kv, sources, targets)

    def _prompt_scores(self, inputs: StepInputs, hidden: Tensor) -> list[PromptScores]:
        """Scores of the prompt tokens that the rows' positions predict, where requested."""
        pieces = []
        ends: list[int] | None = None
        for index, row in enumerate(inputs.rows):
            top = row.request.params.prompt_logprobs
            if top is None or not row.request.wants_prompt_logprobs:
                continue
            ends = ends or inputs.ends
            first = ends[index] + 1 - row.tokens
            predicted = on_device(predicted_prompt_tokens(row), torch.int64, self._device)
            for start in range(0, len(predicted), LOGPROB_ROWS):
                tokens = predicted[start : start + LOGPROB_ROWS]
                logits = self._model.logits(hidden[first + start : first + start + len(tokens)])
                pieces.append(PromptScores(index, top, on_host(measure(self._ops, logits, tokens, top))))
        return pieces
