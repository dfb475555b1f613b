"""Executes a plan on the CPU: the executor behind the scheduler."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from engine.execution.finite import finite_rows
from engine.execution.hidden import HiddenStateTable
from engine.execution.inputs import RowPlacer, StepInputs
from engine.execution.logprobs import LOGPROB_ROWS, predicted_prompt_tokens
from engine.execution.pooling import HostSums, Pooler, embedding_bytes
from engine.execution.sampler import Draw, Sampler, accepted_drafts, token_logprobs
from engine.execution.slots import SlotTable
from engine.execution.states import StepStateRows
from engine.models.host_model import DrawsTokens, HostModel
from engine.request import Fault, TokenLogprob
from engine.scheduling.plan import BlockCopy, RowResult, ScheduledRow, StepPlan, StepResult
from kernels.adapters import AdapterWeights, PackedAdapter
from kernels.arrays import Array, Flags, Floats, Ints, bits_of, int_array
from kernels.cpu.native.adapter_packing import ModelLayout
from kernels.host import StepRows

_NOTHING_DRAWN = RowResult()


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step that is complete: on a CPU, launching is computing."""

    _result: StepResult

    def result(self) -> StepResult:
        return self._result


class Drawn(NamedTuple):
    """The sampled tokens, the rows whose grammar failed, and whether the logits of each draw were finite."""

    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    failed: frozenset[int]
    finite: list[bool]


def drawn_by_ranks(tokens: Ints, sound: Flags) -> Drawn:
    """Plain draws: see `DrawsTokens`."""
    return Drawn(tokens.tolist(), [None] * len(tokens), frozenset(), sound.tolist())


class StepDraws(NamedTuple):
    """The draws of a step: those of the decode rows, whose hidden states come first, then for each other row that
    samples those after its last token and after each of its drafts. `indices`: of their hidden states; None: all, in
    order."""

    draws: list[Draw]
    indices: list[int] | None


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """A plan as the model takes it: its rows in the order of the kernels, and its draws."""

    plan: StepPlan
    inputs: StepInputs
    rows: Sequence[ScheduledRow]
    step_rows: StepRows
    draws: StepDraws


class ModelRunner:
    """A model, its KV memory and a slot for each running request."""

    def __init__(
        self,
        model: HostModel,
        *,
        num_blocks: int,
        num_slots: int,
        max_model_len: int,
        num_states: int = 0,
        groups: int = 1,
    ) -> None:
        """`num_states`: state slots of a model with recurrent layers. `groups`: of the model's KV."""
        self._model = model
        self._ops = model.ops
        self._kv = model.allocate_kv(num_blocks)
        self._states = StepStateRows(model.allocate_states(num_states)) if num_states else None
        self._slots = SlotTable(num_slots, max_model_len, model.config.vocab_size, groups)
        self._placer = RowPlacer(self._slots, model.config.windows[-1])
        self._sampler = Sampler(model.ops, self._slots, model.config.vocab_size)
        self._num_slots = num_slots
        self._hidden_states: HiddenStateTable | None = None
        self._pooler = Pooler(HostSums())

    @property
    def async_depth(self) -> int:
        return 0

    @property
    def micro_batches(self) -> int:
        return 1

    @property
    def launches(self) -> None:
        return None

    @property
    def expert_tokens(self) -> tuple[int, ...]:
        return tuple(self._model.expert_tokens.tolist())

    @property
    def takes_drafts(self) -> bool:
        return True

    def allocate_adapters(self, slots: int) -> None:
        """Make slots for adapters; once."""
        self._model.allocate_adapters(slots)

    @property
    def adapter_layout(self) -> ModelLayout | None:
        """See `engine.runtime.adapter_loading.AdapterMemory`."""
        return self._model.adapter_layout

    def pack_adapter(self, weights: AdapterWeights) -> PackedAdapter:
        """See `engine.runtime.adapter_loading.AdapterMemory`."""
        return self._model.pack_adapter(weights)

    def put_adapter(self, slot: int, packed: Any | None) -> None:
        """See `engine.runtime.adapter_loading.AdapterMemory`."""
        self._model.put_adapter(slot, packed)

    def is_resident(self, slot: int) -> bool:
        """Always, on a CPU."""
        return True

    @property
    def kv_block_bytes(self) -> int:
        """See `engine.runtime.kv_copier.BlockMemory`."""
        return self._kv[:, 0].nbytes

    def read_block(self, block: int) -> bytes:
        """See `engine.runtime.kv_copier.BlockMemory`."""
        return bits_of(self._kv)[:, block].tobytes()

    def write_block(self, block: int, data: bytes) -> None:
        """See `engine.runtime.kv_copier.BlockMemory`."""
        target = bits_of(self._kv)[:, block]
        target[:] = np.frombuffer(data, target.dtype).reshape(target.shape)

    @property
    def kv_format(self) -> str:
        """The layout of the bytes of a block: equal texts mean equal layouts."""
        layers, _, *rest = self._kv.shape
        return f"{type(self._ops).__name__} {self._kv.dtype} {[layers, *rest]}"

    def keep_hidden_states(self) -> HiddenStateTable:
        """Start to keep the hidden states that some proposers draft from."""
        if self._hidden_states is None:
            states = np.zeros((self._num_slots, self._model.config.hidden_size), dtype=self._ops.dtype)
            self._hidden_states = HiddenStateTable(states)
        return self._hidden_states

    def execute(self, plan: StepPlan) -> FinishedStep:
        """Compute the plan's rows and sample the tokens of those that sample."""
        step = self._place(plan)
        hidden = self._model.forward(step.inputs.token_ids, step.step_rows, self._kv, step.inputs.wanted)
        return FinishedStep(self._finish(step, hidden, self._draw(step.draws, hidden)))

    def _place(self, plan: StepPlan) -> PlacedStep:
        """The inputs of a plan, with its copies made."""
        inputs = self._placer.place(plan)
        self._prepare_blocks(plan.copies, inputs)
        rows = plan.rows if inputs.order is None else [plan.rows[place] for place in inputs.order]
        step_rows = inputs.rows if self._states is None else self._states.begin(plan, rows, inputs.rows)
        return PlacedStep(plan, inputs, rows, step_rows, _draws_of(rows, inputs))

    def _finish(self, step: PlacedStep, hidden: Array, drawn: Drawn) -> StepResult:
        """The result of a step, from its hidden states [W, H] and what was drawn from them."""
        rows, inputs = step.rows, step.inputs
        results = self._results(rows, inputs, hidden, drawn)
        if step.plan.draft_tokens and self._states is not None:
            accepted = [result.accepted for row, result in zip(rows, results, strict=True) if row.drafts]
            self._model.settle_drafts(step.step_rows, int_array(accepted))
        if self._hidden_states is not None:
            self._keep_hidden(self._hidden_states, rows, inputs.ends, results, hidden)
        return StepResult(tuple(_in_plan_order(results, inputs.order)))

    def _prepare_blocks(self, copies: tuple[BlockCopy, ...], inputs: StepInputs) -> None:
        if self._model.reads_past_context and len(entered := inputs.entered_blocks()):
            self._ops.clear_blocks(self._kv, entered)
        if copies:
            sources = int_array([copy.source for copy in copies])
            self._ops.copy_blocks(self._kv, sources, int_array([copy.target for copy in copies]))

    def _results(
        self, rows: Sequence[ScheduledRow], inputs: StepInputs, hidden: Array, drawn: Drawn
    ) -> list[RowResult]:
        """The results of the rows. `inputs.ends` has the index of each row's last hidden state."""
        finite = finite_rows(hidden, inputs.ends)
        decoding = len(inputs.decoding)
        others, ends = rows[decoding:], inputs.ends[decoding:].tolist()
        results = _decoded(drawn, finite[:decoding])
        if others:
            results += self._others(others, ends, finite[decoding:], _after_drafts(others, drawn, decoding), hidden)
        return results

    def _draw(self, draws: StepDraws, hidden: Array) -> Drawn:
        """Sample from the hidden states of a step."""
        if not draws.draws:
            return Drawn([], [], frozenset(), [])
        if draws.indices is not None:
            hidden = hidden[draws.indices]
        if isinstance(self._model, DrawsTokens) and (columns := self._sampler.plain_columns(draws.draws)) is not None:
            return drawn_by_ranks(*self._model.draw(hidden, columns))
        return self._sampled(self._model.logits(hidden), draws.draws)

    def _sampled(self, logits: Floats, draws: list[Draw]) -> Drawn:
        finite = self._ops.finite_rows(logits).tolist()
        return Drawn(*self._sampler.sample(logits, draws), finite)

    def _others(
        self,
        rows: Sequence[ScheduledRow],
        ends: Sequence[int],
        finite: Sequence[bool],
        drawn: Iterator[RowResult],
        hidden: Array,
    ) -> list[RowResult]:
        """The results of rows that are not plain decode rows. `drawn` yields those of the rows that sample."""
        embeddings = self._pooler.pool(rows, ends, hidden)
        results = []
        for index, (row, end) in enumerate(zip(rows, ends, strict=True)):
            result = next(drawn) if row.samples else _NOTHING_DRAWN
            if not finite[index]:
                result = result._replace(finite=False)
            if row.request.wants_prompt_logprobs:
                result = result._replace(prompt_logprobs=self._prompt_logprobs(row, end, hidden))
            if index in embeddings:
                result = result._replace(embedding=embedding_bytes(embeddings[index]))
            results.append(result)
        return results

    def _keep_hidden(
        self,
        states: HiddenStateTable,
        rows: Sequence[ScheduledRow],
        ends: Ints,
        results: Sequence[RowResult],
        hidden: Array,
    ) -> None:
        requests, positions, indices = [], [], []
        for row, end, result in zip(rows, ends.tolist(), results, strict=True):
            if row.samples:
                rejected = len(row.drafts) - result.accepted
                requests.append(row.request)
                positions.append(row.start + row.tokens - 1 - rejected)
                indices.append(end - rejected)
        if requests:
            states.keep(requests, positions, hidden[int_array(indices)])

    def _prompt_logprobs(self, row: ScheduledRow, end: int, hidden: Array) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of the prompt tokens that the row's positions predict, if requested. `end`: index of the
        row's last hidden state."""
        count = row.request.params.prompt_logprobs
        if count is None:
            return ()
        predicted = predicted_prompt_tokens(row)
        first = end + 1 - row.tokens
        entries: list[TokenLogprob] = []
        for start in range(0, len(predicted), LOGPROB_ROWS):
            tokens = predicted[start : start + LOGPROB_ROWS]
            logits = self._model.logits(hidden[first + start : first + start + len(tokens)])
            entries += token_logprobs(self._ops, logits, tokens, [count] * len(tokens))
        return tuple(entries)


def _draws_of(rows: Sequence[ScheduledRow], inputs: StepInputs) -> StepDraws:
    decoding, drawn_at = len(inputs.decoding), list[int]()
    draws = inputs.decoding
    for row, end in zip(rows[decoding:], inputs.ends[decoding:].tolist(), strict=True):
        if row.samples:
            count = len(row.drafts)
            draws = draws + [Draw(row.request, row.drafts[:taken]) for taken in range(count + 1)]
            drawn_at += range(end - count, end + 1)
    states = int(inputs.ends[-1]) + 1
    return StepDraws(draws, [*range(decoding), *drawn_at] if len(draws) < states else None)


def _decoded(drawn: Drawn, finite: Sequence[bool]) -> list[RowResult]:
    """The results of the decode rows, whose draws come first. `finite`: whether each one's hidden state is."""
    tokens, logprobs = drawn.tokens[: len(finite)], drawn.logprobs[: len(finite)]
    if not drawn.failed and False not in finite and False not in drawn.finite:
        return [_result(token, logprob) for token, logprob in zip(tokens, logprobs, strict=True)]
    results = []
    for row, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        failed = row in drawn.failed
        good = finite[row] and drawn.finite[row] and not failed
        results.append(_result(token, logprob, good, fault=Fault.GRAMMAR if failed else Fault.NOT_FINITE))
    return results


def _after_drafts(rows: Sequence[ScheduledRow], drawn: Drawn, first: int) -> Iterator[RowResult]:
    """The results of rows with drafts, whose draws begin at `first`: the tokens up to the first one that differs from
    its draft."""
    tokens, logprobs = drawn.tokens, drawn.logprobs
    for row in rows:
        if row.samples:
            last = first + len(row.drafts)
            accepted = accepted_drafts(row.drafts, tokens[first:last])
            kept = first + accepted
            broken = not drawn.failed.isdisjoint(range(first, kept + 1))
            of_drafts = tuple(entry for entry in logprobs[first:kept] if entry is not None)
            good = not broken and False not in drawn.finite[first : last + 1]
            fault = Fault.GRAMMAR if broken else Fault.NOT_FINITE
            yield _result(tokens[kept], logprobs[kept], good, accepted, of_drafts, fault)
            first = last + 1


def _result(
    token: int,
    logprob: TokenLogprob | None,
    finite: bool = True,
    accepted: int = 0,
    draft_logprobs: tuple[TokenLogprob, ...] = (),
    fault: Fault = Fault.NOT_FINITE,
) -> RowResult:
    """A row's result. Bypasses the constructor, which takes twice as long and runs once for each row and step."""
    return tuple.__new__(RowResult, (token, logprob, (), finite, accepted, draft_logprobs, fault, b""))


def _in_plan_order(results: list[RowResult], order: Sequence[int] | None) -> list[RowResult]:
    """Results in the plan's order. `order`: each result's place in the plan; None if they are in order."""
    if order is None:
        return results
    in_order = list(results)
    for place, result in zip(order, results, strict=True):
        in_order[place] = result
    return in_order
