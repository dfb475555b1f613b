"""The ops of a CUDA device around a model's forward pass, by this package's kernels."""

import torch
from torch import Tensor

from kernels.ops import AttentionPlan, FiniteTokens, SlotDraws, SlotSampling
from kernels.step import DrawnPlaces, Sequences, StepShape, StepTensors
from kernels.triton import bitmask, sampling, step
from kernels.triton.merging import arrival_counters
from kernels.triton.plan import SPLIT_TOKENS, TritonPlan, number_splits


class TritonStepOps:
    """A `kernels.step.StepOps`. Does not synchronise with the device."""

    def scatter_runs(self, words: Tensor, upload: Tensor, runs: int) -> None:
        step.scatter_runs(words, upload, runs)

    def derive(self, rows: Tensor, sequences: Sequences, out: StepTensors, shape: StepShape) -> None:
        step.derive(rows, sequences, out, shape.most_queries)

    def plan_attention(self, step: StepTensors, block_tables: Tensor, shape: StepShape) -> AttentionPlan:
        split_starts = torch.empty(shape.decode_rows + 1, dtype=torch.int32, device=block_tables.device)
        # Each row begins one split, and fills as many as its context is long.
        split_capacity = shape.decode_rows + shape.decode_context_tokens // SPLIT_TOKENS
        counters = arrival_counters(shape.decode_rows, split_capacity, block_tables.device)
        number_splits(step.context_lens, split_starts, counters)
        return TritonPlan(
            positions=step.positions,
            slot_mapping=step.slot_mapping,
            block_tables=block_tables,
            row_slots=step.row_slots,
            query_starts=step.query_starts,
            context_lens=step.context_lens,
            decode_rows=shape.decode_rows,
            decode_queries=shape.decode_queries,
            extend_tokens=shape.extend_tokens,
            split_starts=split_starts,
            split_capacity=split_capacity,
            counters=counters,
        )

    def mask_rows(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        bitmask.mask_rows(logits, rows, bits)

    def sample_slots(
        self,
        logits: Tensor,
        columns: SlotSampling,
        row_slots: Tensor,
        positions: Tensor,
        *,
        uses_thresholds: bool,
        uses_penalties: bool,
        places: DrawnPlaces,
        hidden: FiniteTokens | None = None,
    ) -> SlotDraws:
        return sampling.sample_slots(
            logits,
            columns,
            row_slots,
            positions,
            uses_thresholds=uses_thresholds,
            uses_penalties=uses_penalties,
            hidden=hidden,
            places=places,
        )

    def settled_tokens(self, rows: Tensor, drafts: Tensor, last: Tensor, drawn: Tensor) -> Tensor:
        return step.settled_tokens(rows, drafts, last, drawn)

    def accept_drafts(self, rows: Tensor, sequences: Sequences, last: Tensor, drawn: Tensor, rejected: Tensor) -> None:
        step.accept_drafts(rows, sequences, last, drawn, rejected)

    def follow_accepted(self, rows: Tensor, rejected: Tensor) -> None:
        step.follow_accepted(rows, rejected)

    def count_tokens(self, counts: Tensor, tokens: Tensor, countings: Tensor) -> None:
        step.count_tokens(counts, tokens, countings)
