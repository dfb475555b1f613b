"""Runs a plan on the model: the executor behind the scheduler."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.execution.inputs import StepInputs, prepare_inputs
from engine.execution.logprobs import LOGPROB_ROWS, predicted_prompt_tokens
from engine.execution.sampler import Sampler, token_logprobs
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
        self._sampler = Sampler(model.ops, self._slots)

    @property
    def ahead(self) -> int:
        return 0

    @property
    def takes_drafts(self) -> bool:
        return False

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
        finite = _finite_rows(hidden, inputs)
        prompt_logprobs = [
            self._prompt_logprobs(row, hidden[end + 1 - row.tokens : end + 1])
            for row, end in zip(inputs.rows, inputs.ends.tolist(), strict=True)
        ]
        sampling = [i for i, row in enumerate(inputs.rows) if row.samples]
        tokens: dict[int, int] = {}
        logprobs: dict[int, TokenLogprob | None] = {}
        if sampling:
            logits = self._model.logits(hidden[inputs.ends[sampling]])
            for i, is_finite in zip(sampling, self._ops.finite_rows(logits).tolist(), strict=True):
                finite[i] = finite[i] and is_finite
            requests = [inputs.rows[i].request for i in sampling]
            drawn, drawn_logprobs = self._sampler.sample(logits, requests)
            tokens = dict(zip(sampling, drawn, strict=True))
            logprobs = dict(zip(sampling, drawn_logprobs, strict=True))
        return [
            RowResult(tokens.get(i), logprobs.get(i), prompt_logprobs[i], finite[i]) for i in range(len(inputs.rows))
        ]

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
