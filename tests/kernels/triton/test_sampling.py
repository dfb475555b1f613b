"""Drawn tokens are the reference's, whatever the rows ask for, and those of a row alone are those of a full step."""

import itertools
import math

import pytest
import torch

from kernels import reference
from kernels.ops import FiniteTokens, SamplingColumns
from kernels.reference_step import store_drawn
from kernels.step import DrawnPlaces, Row
from kernels.triton.bitmask import mask_rows
from kernels.triton.sampling import sample, sample_slots
from tests.support.kernel_tensors import DEVICE, DTYPES
from tests.support.sampling_cases import (
    MARGIN,
    VOCABULARIES,
    by_rows,
    every_kind,
    margins,
    random_bitmask,
    random_logits,
    slot_columns,
)

ROW_SLOTS = torch.tensor([3, 0, 6, 1, 7, 2, 2, 5, 4], dtype=torch.int32, device=DEVICE)
POSITIONS = torch.tensor([1, 2, 3, 40, 131_072, 8, 9, 2**33, 77], device=DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_steps_of_every_kind(vocab_size: int, dtype: torch.dtype) -> None:
    columns, bitmask = every_kind(vocab_size), random_bitmask(9, vocab_size)
    logits = random_logits(9, vocab_size, dtype)
    reference.mask_logits(logits, bitmask)
    expected_logits = logits.clone()
    expected, _, _ = reference.sample_slots(expected_logits, columns, ROW_SLOTS, POSITIONS)
    ids, finite, _ = sample_slots(logits, columns, ROW_SLOTS, POSITIONS, uses_thresholds=True, uses_penalties=True)
    clear = margins(expected_logits, by_rows(columns, ROW_SLOTS, POSITIONS)) > MARGIN
    if dtype == torch.float32:  # greedy rows tie in narrow ones
        assert int(clear.sum()) >= 8
    assert ids[clear].tolist() == expected[clear].tolist()
    assert finite.all()


def test_plain_steps() -> None:
    """Without thresholds and penalties only the columns of the draw itself matter."""
    columns = slot_columns(8, 5003, inverse_temperature=[0.5] * 8, noise_scale=[1.0, 0.0] * 4)
    logits = random_logits(9, 5003)
    expected, _, _ = reference.sample_slots(logits, columns, ROW_SLOTS, POSITIONS)
    ids, finite, _ = sample_slots(logits, columns, ROW_SLOTS, POSITIONS, uses_thresholds=False, uses_penalties=False)
    assert margins(logits, by_rows(columns, ROW_SLOTS, POSITIONS)).min() > MARGIN
    assert ids.tolist() == expected.tolist()
    assert finite.all()


def test_op_table() -> None:
    columns = by_rows(every_kind(1025), ROW_SLOTS, POSITIONS)
    logits = random_logits(9, 1025)
    assert margins(logits, columns).min() > MARGIN
    assert sample(logits, columns).tolist() == reference.sample(logits, columns).tolist()


def test_the_smallest_id_wins_a_tie() -> None:
    """Within a tile and among tiles, greedy or where only one score is left."""
    columns = slot_columns(2, 5003, noise_scale=[0.0, 1.0])
    logits = random_logits(3, 5003).clamp(max=4)
    logits[0, [4999, 2100, 2050]] = 9.0
    logits[1, [17, 3000]] = 9.0
    logits[2] = -math.inf
    ids, finite = _draw_plainly(logits, columns, [0, 0, 1])
    assert ids == [2050, 17, 0]
    assert finite == [True, True, False]


def test_rows_that_are_not_sound_are_told_and_harm_no_other() -> None:
    vocab_size = 2500
    columns = slot_columns(1, vocab_size, top_p=[0.9])
    logits = random_logits(6, vocab_size)
    sound = logits.clone()
    logits[1, 2400], logits[2], logits[3, 0], logits[5] = math.nan, math.nan, math.inf, -math.inf
    drawn = [
        sample_slots(
            each,
            columns,
            torch.zeros(6, dtype=torch.int32, device=DEVICE),
            torch.arange(6, device=DEVICE),
            uses_thresholds=True,
            uses_penalties=False,
        )
        for each in (logits, sound)
    ]
    (ids, finite, _), (sound_ids, all_finite, _) = drawn
    assert finite.tolist() == reference.finite_rows(logits).tolist() == [True, False, False, False, True, False]
    assert all_finite.all()
    assert ids[finite].tolist() == sound_ids[finite].tolist()
    assert int(ids.min()) >= 0
    assert int(ids.max()) < vocab_size


@pytest.mark.parametrize("drafts", [False, True])
def test_draws_of_rows_with_hidden_states_that_are_not_finite_are_not_sound(drafts: bool) -> None:
    """Rows of one token, of a few and of many, or with a draw after each token of some."""
    lengths = [1, 3, 700, 1, 2, 300]
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=DEVICE)
    owners = [0, 1, 1, 1, 2, 3, 4, 4, 5] if drafts else list(range(6))
    rows = torch.tensor(owners, dtype=torch.int32, device=DEVICE) if drafts else None
    draws, vocab_size = len(owners), 2500
    logits = random_logits(draws, vocab_size)
    logits[1] = math.nan
    slots, positions = torch.zeros(draws, dtype=torch.int32, device=DEVICE), torch.arange(draws, device=DEVICE)
    for broken in ((), (0,), (1,), (3,), (4,), (703,), (704,), (705, 260), (1006,), (707, 1)):
        flags = torch.ones(sum(lengths), dtype=torch.int8, device=DEVICE)
        flags[list(broken)] = 0
        hidden = FiniteTokens(flags, starts, rows)
        expected = reference.sample_slots(logits, slot_columns(1, vocab_size), slots, positions, hidden)
        uses = {"uses_thresholds": False, "uses_penalties": False}
        drawn = sample_slots(logits, slot_columns(1, vocab_size), slots, positions, **uses, hidden=hidden)
        assert drawn.finite is not None
        assert expected.finite is not None
        assert drawn.finite.tolist() == expected.finite.tolist()
        assert drawn.sound.tolist() == expected.sound.tolist()
        assert torch.equal(drawn.ids[drawn.sound], expected.ids[drawn.sound])


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    columns = every_kind(1025)
    logits = random_logits(9, 1025)
    together, _, _ = sample_slots(
        logits.clone(), columns, ROW_SLOTS, POSITIONS, uses_thresholds=True, uses_penalties=True
    )
    for row in (0, 3, 4, 8):
        one = slice(row, row + 1)
        alone, _, _ = sample_slots(
            logits[one].clone(), columns, ROW_SLOTS[one], POSITIONS[one], uses_thresholds=True, uses_penalties=True
        )
        assert alone.tolist() == together[one].tolist()


def test_rows_further_apart_than_32_bits_count() -> None:
    stride, vocab_size = 2**30, 31
    # Only the pages of the three rows are ever touched; the last one begins at element 2^31.
    memory = torch.empty(2 * stride + vocab_size, dtype=torch.float16, device=DEVICE)
    far = memory.as_strided((3, vocab_size), (stride, 1))
    near = random_logits(3, vocab_size, torch.float16)
    far.copy_(near)
    columns, bitmask = every_kind(vocab_size), random_bitmask(3, vocab_size)
    drawn = []
    for logits in (near, far):
        mask_rows(logits, torch.arange(3, device=DEVICE), bitmask)
        drawn.append(
            sample_slots(logits, columns, ROW_SLOTS[1:4], POSITIONS[1:4], uses_thresholds=True, uses_penalties=True)
        )
    assert drawn[1][0].tolist() == drawn[0][0].tolist()
    assert drawn[1][1].all()
    assert torch.equal(far, near)


def test_draws_follow_the_softmax() -> None:
    """Pearson's statistic of 300 draws of one request stays below the 99.9th percentile of chi-square."""
    draws, temperature = 300, 0.8
    logits = torch.tensor([1.0, 0.0, -0.5, 0.7, -1.0, 0.2], device=DEVICE)
    columns = slot_columns(1, 6, inverse_temperature=[1 / temperature], seeds=[2024])
    ids, _, _ = sample_slots(
        logits.repeat(draws, 1),
        columns,
        torch.zeros(draws, dtype=torch.int32, device=DEVICE),
        torch.arange(draws, device=DEVICE),
        uses_thresholds=False,
        uses_penalties=False,
    )
    expected = (logits / temperature).softmax(dim=-1) * draws
    statistic = ((torch.bincount(ids, minlength=6) - expected).square() / expected).sum()
    assert float(statistic) < 20.5  # five degrees of freedom


def _draw_plainly(logits: torch.Tensor, columns: SamplingColumns, slots: list[int]) -> tuple[list[int], list[bool]]:
    row_slots = torch.tensor(slots, dtype=torch.int32, device=DEVICE)
    positions = torch.arange(len(slots), device=DEVICE)
    ids, finite, _ = sample_slots(logits, columns, row_slots, positions, uses_thresholds=False, uses_penalties=False)
    return ids.tolist(), finite.tolist()


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("checked", [False, True])
def test_what_is_drawn_is_stored_for_rows_that_draw_where_there_is_room(drafts: bool, checked: bool) -> None:
    """Not for one that does not draw, for padding, nor past the end; with a draw after each draft, the last one."""
    slots, length, vocab_size = 6, 160, 2500
    lines = [
        Row(3, 40, 1, 0, 1, 0),
        Row(0, 3, 4, 3, 0, 1),
        Row(-1, 0, 1, 0, 1, 5),
        Row(4, 159, 1, 0, 1, 6),
        Row(2, 0, 9, 0, 1, 7),
    ]
    counts = [1 + line.drafts if drafts else 1 for line in lines]
    owners = [row for row, count in enumerate(counts) for _ in range(count)]
    rows = torch.tensor(owners, dtype=torch.int32, device=DEVICE) if drafts else None
    last = torch.tensor([*itertools.accumulate(counts)], device=DEVICE) - 1 if drafts else None
    words = torch.tensor([[*line] for line in lines], dtype=torch.int32, device=DEVICE)
    logits, positions = random_logits(len(owners), vocab_size), torch.arange(len(owners), device=DEVICE)
    hidden = None
    if checked:
        flags = torch.ones(len(lines), dtype=torch.int8, device=DEVICE)
        hidden = FiniteTokens(flags, torch.arange(len(lines) + 1, dtype=torch.int32, device=DEVICE), rows)
    tokens, expected = (torch.full((slots, length), -1, dtype=torch.int32, device=DEVICE) for _ in range(2))
    uses = {"uses_thresholds": False, "uses_penalties": False}
    drawn = sample_slots(
        logits,
        slot_columns(1, vocab_size),
        torch.zeros(len(owners), dtype=torch.int32, device=DEVICE),
        positions,
        **uses,
        hidden=hidden,
        places=DrawnPlaces(words, tokens, rows, last),
    )
    on_host = None if last is None else last.cpu()
    on_cpu = expected.cpu()
    store_drawn(DrawnPlaces(words.cpu(), on_cpu, None if rows is None else rows.cpu(), on_host), drawn.ids.cpu())
    assert torch.equal(tokens.cpu(), on_cpu)
    assert (tokens >= 0).nonzero().tolist() == [[2, 9], [3, 41]]
