"""Runs a plan on the model: the executor behind the scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.execution.hidden import HiddenStateTable
from engine.execution.inputs import StepInputs, prepare_inputs
from engine.execution.logprobs import LOGPROB_ROWS, predicted_prompt_tokens
from engine.execution.pooling import Pooler, embedding_bytes
from engine.execution.sampler import Draw, Sampler, accepted_drafts, token_logprobs
from engine.execution.slots import SlotTable, entered_blocks, index_tensor
from engine.models.transformer import Transformer
from engine.request import TokenLogprob
from engine.scheduling.plan import BlockCopy, RowResult, ScheduledRow, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step whose result is there already: on a CPU, launching is computing."""

    _result: StepResult

    def result(self) -> StepResult:
        return self._result


class ModelRunner:
    """One model, its KV memory, and a slot for each running request."""

    def __init__(self, model: Transformer, *, num_blocks: int, num_slots: int, max_model_len: int) -> None:
        self._model = model
        self._ops = model.ops
        with torch.inference_mode():
            self._kv = model.allocate_kv(num_blocks)
        self._slots = SlotTable(num_slots, max_model_len, model.config.vocab_size)
        self._sampler = Sampler(model.ops, self._slots, model.config.vocab_size)
        self._num_slots = num_slots
        self._hidden_states: HiddenStateTable | None = None
        self._pooler = Pooler()

    @property
    def ahead(self) -> int:
        return 0

    @property
    def takes_drafts(self) -> bool:
        return True

    @torch.inference_mode()
    def keep_hidden_states(self) -> HiddenStateTable:
        """From now on, keep what proposers read that guess from the model's own hidden states."""
        if self._hidden_states is None:
            states = torch.zeros((self._num_slots, self._model.config.hidden_size), dtype=self._ops.dtype)
            self._hidden_states = HiddenStateTable(states)
        return self._hidden_states

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> FinishedStep:
        """Compute the plan's rows and draw the tokens of those that sample."""
        for row in plan.rows:
            self._slots.update(row)
        inputs = prepare_inputs(plan, self._slots)
        self._prepare_blocks(plan.copies, inputs.rows)
        hidden = self._model.forward(inputs.token_ids, self._ops.plan_attention(inputs.metadata), self._kv)
        results = self._results(inputs, hidden)
        in_plan_order = [RowResult()] * len(results)
        for position, result in zip(inputs.order, results, strict=True):
            in_plan_order[position] = result
        return FinishedStep(StepResult(tuple(in_plan_order)))

    def _prepare_blocks(self, copies: tuple[BlockCopy, ...], rows: list[ScheduledRow]) -> None:
        if entered := entered_blocks(rows):
            self._ops.clear_blocks(self._kv, index_tensor(entered))
        if copies:
            sources = index_tensor([copy.source for copy in copies])
            self._ops.copy_blocks(self._kv, sources, index_tensor([copy.target for copy in copies]))

    def _results(self, inputs: StepInputs, hidden: Tensor) -> list[RowResult]:
        ends = inputs.ends.tolist()
        drawn = iter(self._draw(inputs.rows, ends, hidden))
        firsts = [end + 1 - row.tokens for row, end in zip(inputs.rows, ends, strict=True)]
        embeddings = self._pooler.pool(inputs.rows, firsts, hidden)
        results = []
        for index, (row, end, finite) in enumerate(zip(inputs.rows, ends, _finite_rows(hidden, inputs), strict=True)):
            result = next(drawn) if row.samples else RowResult()
            if not finite:
                result = result._replace(finite=False)
            if row.request.params.prompt_logprobs is not None:
                entries = self._prompt_logprobs(row, hidden[end + 1 - row.tokens : end + 1])
                result = result._replace(prompt_logprobs=entries)
            if index in embeddings:
                result = result._replace(embedding=embedding_bytes(embeddings[index]))
            results.append(result)
        if self._hidden_states is not None:
            self._keep_hidden(self._hidden_states, inputs.rows, ends, results, hidden)
        return results

    def _draw(self, rows: Sequence[ScheduledRow], ends: Sequence[int], hidden: Tensor) -> list[RowResult]:
        """Draw for the rows that sample: behind the last token of each and, where that has drafts behind it, behind
        each of them. What is drawn up to the first that is no draft stands. `ends` are the rows' last indices.
        """
        draws: list[Draw] = []
        drawn_at: list[int] = []
        for row, end in zip(rows, ends, strict=True):
            if row.samples:
                count = len(row.drafts)
                draws += [Draw(row.request, row.drafts[:taken]) for taken in range(count + 1)]
                drawn_at += range(end - count, end + 1)
        if not draws:
            return []
        logits = self._model.logits(hidden[drawn_at])
        finite = self._ops.finite_rows(logits).tolist()
        tokens, logprobs, failed = self._sampler.sample(logits, draws)
        results, first = [], 0
        for row in rows:
            if row.samples:
                last = first + len(row.drafts)
                accepted = accepted_drafts(row.drafts, tokens[first:last])
                kept = first + accepted
                of_drafts = tuple(each for each in logprobs[first:kept] if each is not None)
                result = RowResult(tokens[kept], logprobs[kept], (), all(finite[first : last + 1]), accepted, of_drafts)
                if first in failed:
                    result = result._replace(finite=False, fault="the grammar cannot be followed any further")
                results.append(result)
                first = last + 1
        return results

    def _keep_hidden(
        self,
        states: HiddenStateTable,
        rows: Sequence[ScheduledRow],
        ends: Sequence[int],
        results: Sequence[RowResult],
        hidden: Tensor,
    ) -> None:
        requests, positions, indices = [], [], []
        for row, end, result in zip(rows, ends, results, strict=True):
            if row.samples:
                rejected = len(row.drafts) - result.accepted
                requests.append(row.request)
                positions.append(row.start + row.tokens - 1 - rejected)
                indices.append(end - rejected)
        if requests:
            states.keep(requests, positions, hidden[indices])

    def _prompt_logprobs(self, row: ScheduledRow, hidden: Tensor) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of the prompt tokens that this row's positions predict, where asked for."""
        count = row.request.params.prompt_logprobs
        if count is None:
            return ()
        predicted = predicted_prompt_tokens(row)
        entries: list[TokenLogprob] = []
        for start in range(0, len(predicted), LOGPROB_ROWS):
            tokens = predicted[start : start + LOGPROB_ROWS]
            logits = self._model.logits(hidden[start : start + len(tokens)])
            entries += token_logprobs(self._ops, logits, tokens, [count] * len(tokens))
        return tuple(entries)


def _finite_rows(hidden: Tensor, inputs: StepInputs) -> list[bool]:
    """Whether all of each row's hidden states are finite. A sum is not where any of its terms is not."""
    broken = (~hidden.sum(dim=-1).isfinite()).nonzero().flatten()
    finite = [True] * len(inputs.rows)
    if len(broken):
        for row in torch.searchsorted(inputs.ends, broken).tolist():
            finite[row] = False
    return finite
