"""The plan of a step's attention, under Triton's interpreter."""

from itertools import accumulate

import torch

from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata
from kernels.triton.plan import SPLIT_TOKENS, number_splits, plan_from_metadata, splits_of

CPU = torch.device("cpu")


def metadata(query_lens: tuple[int, ...], context_lens: tuple[int, ...]) -> AttentionMetadata:
    most = -(-max(context_lens) // BLOCK_TOKENS)
    return AttentionMetadata(torch.arange(most * len(query_lens)).view(-1, most), query_lens, context_lens)


def test_splits_of_a_context() -> None:
    contexts = [0, 1, SPLIT_TOKENS - 1, SPLIT_TOKENS, SPLIT_TOKENS + 1, 10 * SPLIT_TOKENS]
    assert [splits_of(context) for context in contexts] == [1, 1, 1, 1, 2, 10]


def test_splits_are_numbered_row_after_row() -> None:
    """More rows than the kernel takes at once, and nothing behind the last one. Counters are cleared."""
    context_lens = torch.randint(0, 4 * SPLIT_TOKENS, (600,), dtype=torch.int32)
    memory = torch.full((602,), -1, dtype=torch.int32)
    counters = torch.full((3001,), -1, dtype=torch.int32)
    number_splits(context_lens, memory[:601], counters[:3000])
    assert memory[:601].tolist() == list(accumulate(map(splits_of, context_lens.tolist()), initial=0))
    assert memory[601] == -1
    assert not counters[:3000].any()
    assert counters[3000] == -1


def test_rows_are_sorted_into_kernels() -> None:
    given = metadata((1, 1, 4, 20, 3, 7), (9, SPLIT_TOKENS + 88, 4, 30, 3, 1050))
    plan = plan_from_metadata(given, CPU, 4)
    assert (plan.decode_rows, plan.decode_queries) == (3, 4)
    assert (plan.extend_rows, plan.extend_tokens) == (3, 30)
    assert plan.query_starts.tolist() == [0, 1, 2, 6, 26, 29, 36]
    assert plan.context_lens.tolist() == list(given.context_lens)
    assert plan.row_slots.tolist() == list(range(6))
    assert plan.split_starts.tolist() == [0, 1, 3, 4]
    assert plan.split_capacity == 4
    assert torch.equal(plan.positions, given.positions)
    assert torch.equal(plan.slot_mapping, given.slot_mapping)
    assert torch.equal(plan.block_tables, given.block_tables.int())


def test_without_drafts_only_single_tokens_are_decoded() -> None:
    plan = plan_from_metadata(metadata((1, 2), (5, 6)), CPU)
    assert (plan.decode_rows, plan.decode_queries, plan.extend_tokens) == (1, 1, 2)


def test_either_kind_of_row_may_be_missing() -> None:
    chunks = plan_from_metadata(metadata((20,), (20,)), CPU)
    assert (chunks.decode_rows, chunks.decode_queries, chunks.split_capacity) == (0, 0, 0)
    assert chunks.split_starts.tolist() == [0]
    decoded = plan_from_metadata(metadata((1,), (20,)), CPU)
    assert (decoded.extend_rows, decoded.extend_tokens) == (0, 0)
