"""Preparing a step equals its meaning: uploads, what is derived of rows, what is kept of draws."""

from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
import torch

from kernels import reference_step
from kernels.layout import BLOCK_TOKENS
from kernels.step import ROW_WORDS, Counting, Row, Sequences, StepTensors, row_words
from kernels.triton import step

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLOTS, LENGTH, DRAFTS, VOCAB = 5, 160, 4, 300


def sequences(generator: torch.Generator) -> Sequences:
    """Slots full of different numbers, so that a wrong place is a wrong value."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randint(0, VOCAB, shape, dtype=torch.int32, generator=generator).to(DEVICE)

    return Sequences(random(SLOTS, LENGTH), random(SLOTS, LENGTH // BLOCK_TOKENS), random(SLOTS, DRAFTS))


def table(rows: Sequence[Row]) -> torch.Tensor:
    return torch.tensor(row_words(rows), dtype=torch.int32, device=DEVICE).view(-1, ROW_WORDS)


def laid_out(*rows: tuple[int, int, int, int, int]) -> list[Row]:
    """Rows (slot, start, tokens, drafts, draws), one after another."""
    first, lines = 0, []
    for row in rows:
        lines.append(Row(*row, first=first))
        first += row[2]
    return lines


@pytest.mark.parametrize("lengths", [[1], [7], [1, 1, 1], [3, 600, 1, 1], [1] * 37, [513, 511, 2]])
def test_scatter_writes_each_run_to_its_place_and_nothing_else(lengths: list[int]) -> None:
    generator = torch.Generator().manual_seed(len(lengths))
    words = torch.randint(-1000, 0, (4000,), dtype=torch.int32, generator=generator).to(DEVICE)
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    # Runs lie apart from one another and in another order than in the upload.
    targets = [(start + 3 * index + 2) for index, start in enumerate(starts)]
    targets = [3900 - target - length for target, length in zip(targets, lengths, strict=True)]
    payload = range(1, sum(lengths) + 1)
    upload = torch.tensor([*starts, *targets, *payload], dtype=torch.int32, device=DEVICE)
    expected = words.cpu().clone()
    reference_step.scatter_runs(expected, upload.cpu(), len(lengths))
    step.scatter_runs(words, upload, len(lengths))
    assert torch.equal(words.cpu(), expected)
    assert int((expected > 0).sum()) == sum(lengths)


ROWS = {
    "decode": laid_out((3, 40, 1, 0, 1), (0, 0, 1, 0, 1), (4, 159, 1, 0, 1)),
    "drafts": laid_out((3, 40, 3, 2, 1), (1, 15, 5, 4, 1), (0, 7, 3, 2, 0)),
    "mixed": laid_out((2, 31, 1, 0, 1), (1, 12, 148, 0, 1), (0, 0, 17, 0, 0)),
    "filled": laid_out((2, 31, 2, 1, 1), (-1, 0, 2, 0, 0), (-1, 0, 2, 0, 0)),
    "padding without tokens": [
        Row(2, 31, 2, 1, 1, 0),
        Row(-1, 0, 2, 0, 0, 2),
        Row(-1, 0, 0, 0, 0, 4),
        Row(-1, 0, 0, 0, 0, 4),
    ],
    "one long row": laid_out((4, 0, 160, 0, 1)),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_derived_tensors(rows: list[Row]) -> None:
    slots = sequences(torch.Generator().manual_seed(1))
    tokens = sum(row.tokens for row in rows)
    derived, expected = (StepTensors.empty(len(rows), tokens, device) for device in (DEVICE, torch.device("cpu")))
    on_host = Sequences(slots.tokens.cpu(), slots.block_tables.cpu(), slots.drafts.cpu())
    reference_step.derive(table(rows).cpu(), on_host, expected)
    step.derive(table(rows), slots, derived, max(row.tokens for row in rows))
    for field in fields(StepTensors):
        assert torch.equal(getattr(derived, field.name).cpu(), getattr(expected, field.name)), field.name


def test_a_verified_row_takes_its_first_token_from_its_sequence_and_the_rest_from_its_drafts() -> None:
    slots = sequences(torch.Generator().manual_seed(2))
    derived = StepTensors.empty(1, 4, DEVICE)
    step.derive(table(laid_out((3, 40, 4, 3, 1))), slots, derived, 4)
    assert derived.token_ids.tolist() == [int(slots.tokens[3, 40]), *slots.drafts[3, :3].tolist()]
    assert derived.positions.tolist() == [40, 41, 42, 43]


def test_filling_rows_have_no_context_and_write_nowhere() -> None:
    derived = StepTensors.empty(2, 2, DEVICE)
    step.derive(table(laid_out((-1, 0, 1, 0, 0), (-1, 0, 1, 0, 0))), sequences(torch.Generator()), derived, 1)
    assert derived.slot_mapping.tolist() == [-1, -1]
    assert derived.context_lens.tolist() == [0, 0]
    assert derived.query_starts.tolist() == [0, 1, 2]


def test_drafts_are_settled_up_to_the_first_that_is_not_drawn() -> None:
    """Their number is known before what is drawn after them; padding has none."""
    rows = laid_out((3, 40, 4, 3, 0), (-1, 0, 1, 0, 0), (0, 7, 3, 2, 0), (1, 9, 1, 0, 1), (2, 5, 5, 4, 0))
    drafts = torch.tensor([[5, 6, 0, 0], [0] * 4, [1, 2, 3, 4], [7, 8, 9, 0], [0] * 4], dtype=torch.int32)
    drawn = torch.tensor([7, 0, 9, 50, 77, 5, 6, 60, 70, 1, 2, 3, 4, 80])
    last = torch.tensor([3, 4, 7, 8, 13])
    expected = reference_step.settled_tokens(table(rows).cpu(), drafts, last, drawn)
    assert expected.tolist() == [2, 1, 3, 1, 5]
    settled = step.settled_tokens(table(rows), drafts.to(DEVICE), last.to(DEVICE), drawn.to(DEVICE))
    assert torch.equal(settled.cpu(), expected)


def test_accepted_drafts_are_stored_and_the_next_row_follows_them() -> None:
    rows = laid_out((3, 40, 4, 3, 0), (-1, 0, 1, 0, 0), (0, 7, 3, 2, 0), (1, 9, 1, 0, 1), (2, LENGTH - 3, 5, 4, 0))
    on_device = sequences(torch.Generator().manual_seed(5))
    expected = replace(on_device, tokens=on_device.tokens.cpu().clone(), drafts=on_device.drafts.cpu().clone())
    for slot, drafts in ((3, [5, 6, 0]), (0, [1, 2]), (2, [7, 8, 9, 3])):
        on_device.drafts[slot, : len(drafts)] = torch.tensor(drafts, dtype=torch.int32)
        expected.drafts[slot, : len(drafts)] = torch.tensor(drafts, dtype=torch.int32)
    drawn = torch.tensor([5, 6, 4, 50, 77, 1, 3, 60, 70, 7, 8, 9, 3, 80])
    last = torch.tensor([3, 4, 7, 8, 13])
    before = expected.tokens.clone()
    rejected = torch.full((SLOTS,), 9, dtype=torch.int32)
    reference_step.accept_drafts(table(rows).cpu(), expected, last, drawn, rejected)
    assert rejected.tolist()[:4] == [1, 9, 0, 1]
    assert expected.tokens[3, 41:45].tolist() == [5, 6, 4, int(before[3, 44])]
    assert expected.tokens[0, 8:11].tolist() == [1, 3, int(before[0, 10])]
    assert expected.tokens[2, LENGTH - 2 :].tolist() == [7, 8]
    own_rejected = torch.full((SLOTS,), 9, dtype=torch.int32, device=DEVICE)
    step.accept_drafts(table(rows), on_device, last.to(DEVICE), drawn.to(DEVICE), own_rejected)
    assert torch.equal(own_rejected.cpu(), rejected)
    assert torch.equal(on_device.tokens.cpu(), expected.tokens)

    following = laid_out((3, 44, 1, -3, 1), (-1, 0, 1, 0, 0), (0, 10, 1, -2, 1), (1, 10, 1, 0, 1), (2, 50, 1, -4, 1))
    lines = table([*following, *laid_out((4, 60, 1, -2, 1))])
    moved = lines.cpu().clone()
    reference_step.follow_accepted(moved, rejected)
    assert moved[:, 1].tolist() == [43, 0, 9, 10, 50, 58], "never by more than the drafts"
    assert not moved[:, 3].any()
    step.follow_accepted(lines, own_rejected)
    assert torch.equal(lines.cpu(), moved)


def test_counts_of_prompts_and_outputs() -> None:
    tokens = sequences(torch.Generator().manual_seed(4)).tokens
    tokens[2, 3:9] = 17  # a token that comes again and again, on both sides of the border
    lines = [Counting(2, 0, 30, 6), Counting(0, 50, 51, 20), Counting(4, 0, 160, 160), Counting(1, 3, 3, 9)]
    countings = torch.tensor(lines, dtype=torch.int32, device=DEVICE)
    counts = torch.zeros(SLOTS, VOCAB, dtype=torch.int32, device=DEVICE)
    expected = counts.cpu().clone()
    reference_step.count_tokens(expected, tokens.cpu(), countings.cpu())
    step.count_tokens(counts, tokens, countings)
    assert torch.equal(counts.cpu(), expected)
    assert int(counts[2, 17]) & 1 == 1
    assert int(counts[2, 17]) >> 1 >= 3
    assert int(counts[4].max()) == 1
    assert not counts[1].any()
