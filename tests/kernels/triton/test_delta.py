"""Gated delta nets of a step's rows equal the reference, and a row has the same bits however it is computed."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from kernels.delta import DeltaShape
from kernels.device_states import DeviceStates
from kernels.ops import DeltaWeights
from kernels.reference_delta import advance_rows
from kernels.reference_ops import ReferenceLinear
from kernels.step import ROW_WORDS, SAVE_WORDS, Row, RowSave, row_words
from kernels.triton import delta_launch
from kernels.weights import DeltaVectors
from kernels.weights import DeltaWeights as Weights
from tests.support.kernel_tensors import DEVICE, DTYPES, TOLERANCE, random

EPS = 1e-6
SHAPES = (
    DeltaShape(key_heads=1, value_heads=2, key_dim=32, value_dim=16, taps=4),
    DeltaShape(key_heads=3, value_heads=3, key_dim=16, value_dim=16, taps=2),
    DeltaShape(key_heads=1, value_heads=1, key_dim=48, value_dim=48, taps=6),
    DeltaShape(key_heads=2, value_heads=4, key_dim=16, value_dim=16, taps=4, tiled=True),
)
SLOTS, LAYERS, PLACE = 12, 2, 1


class Planned(NamedTuple):
    """A row to compute; its tokens are those of sequence `sequence` from `start` on."""

    sequence: int
    start: int
    tokens: int
    drafts: int = 0
    saves: Sequence[RowSave] = ()
    padding: bool = False


class Net:
    """A net with random weights, the inputs of some sequences, and states in memory that is poisoned before."""

    def __init__(self, shape: DeltaShape, dtype: torch.dtype = torch.float32, length: int = 40) -> None:
        self.shape, self.dtype = shape, dtype

        def numbers(*sizes: int, seed: int) -> Tensor:
            return random(*sizes, dtype=torch.float32, seed=seed)

        vectors = DeltaVectors(
            numbers(shape.taps, shape.channels, seed=1),
            -torch.exp(numbers(shape.value_heads, seed=2) - 1),
            numbers(shape.value_heads, seed=3),
            1 + numbers(shape.value_dim, seed=4) / 5,
        )
        self.weights: DeltaWeights = Weights(shape, ReferenceLinear(torch.zeros(1, 1), None), vectors)
        self.mixed = random(3, length, shape.channels + shape.values, dtype=dtype, seed=5)
        self.gates = random(3, length, 2 * shape.value_heads, dtype=dtype, seed=6) * 3
        self.memory = torch.full((SLOTS, LAYERS, shape.words), torch.nan, device=DEVICE)

    def inputs(self, rows: Sequence[Planned]) -> tuple[Tensor, Tensor]:
        return (
            torch.cat([of[row.sequence, row.start : row.start + row.tokens] for row in rows])
            for of in (self.mixed, self.gates)
        )  # type: ignore[return-value]

    def states(self, rows: Sequence[Planned], memory: Tensor) -> DeviceStates:
        """State slots are those of the sequences."""
        lines, owners, saves = list[Row](), list[int](), list[RowSave]()
        for index, row in enumerate(rows):
            saves += row.saves
            state = -1 if row.padding else row.sequence
            lines.append(Row(state, row.start, row.tokens, row.drafts, 0, len(owners), state, len(saves)))
            owners += [index] * row.tokens

        def words(numbers: Sequence[int], width: int) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int32, device=DEVICE).view(-1, width)

        encoded = words([word for save in (*saves, RowSave(0, 0)) for word in save], SAVE_WORDS)
        drafted = len(owners) if any(row.drafts for row in rows) else 0
        owner = words(owners, 1).flatten()
        return DeviceStates(memory, words(row_words(lines), ROW_WORDS), owner, encoded, drafted)

    def advance(self, *rows: Planned) -> Tensor:
        """[T, Hv Dv] of a step."""
        mixed, gates = self.inputs(rows)
        return delta_launch.gated_delta(mixed, gates, self.weights, PLACE, self.states(rows, self.memory), EPS)

    def settle(self, settled: Sequence[int], *rows: Planned) -> None:
        """From the inputs of the rows up to the last one with drafts."""
        last = max(index for index, row in enumerate(rows) if row.drafts)
        mixed, gates = self.inputs(rows[: last + 1])
        counts = torch.tensor(settled, dtype=torch.int32, device=DEVICE)
        delta_launch.settle_delta(mixed, gates, self.weights, PLACE, self.states(rows, self.memory), counts)

    def expected(self, memory: Tensor, *rows: Planned, settled: Sequence[int] | None = None) -> Tensor:
        """By the reference, which advances `memory`."""
        mixed, gates = self.inputs(rows)
        counts = None if settled is None else torch.tensor(settled)
        states, shape, vectors = self.states(rows, memory), self.shape, self.weights.vectors
        return advance_rows(mixed, gates, PLACE, states, shape, vectors, EPS, counts)


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """By the norm of each line; NaN where NaN is expected."""
    assert torch.equal(actual.isnan(), expected.isnan())
    actual, expected = actual.nan_to_num().float().flatten(1), expected.nan_to_num().float().flatten(1)
    error = (actual - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-9)
    assert float(error.max()) < 3 * TOLERANCE[dtype]


STEPS = (
    (Planned(0, 0, 11, saves=(RowSave(2, 8), RowSave(9, 9))), Planned(1, 0, 1), Planned(2, 0, 3)),
    (Planned(1, 1, 1), Planned(0, 11, 1, saves=(RowSave(1, 10),)), Planned(0, 0, 1, padding=True), Planned(2, 3, 9)),
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_and_states(shape: DeltaShape) -> None:
    net = Net(shape)
    memory = net.memory.clone()
    for step in STEPS:
        assert_near(net.advance(*step), net.expected(memory, *step), torch.float32)
        assert_near(net.memory, memory, torch.float32)
    written = [slot for slot in range(SLOTS) if net.memory[slot, PLACE].isfinite().all()]
    assert written == [0, 1, 2, 8, 9, 10]
    assert net.memory[:, 1 - PLACE].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_inputs_in_16_bits(dtype: torch.dtype) -> None:
    net = Net(SHAPES[0], dtype)
    memory = net.memory.clone()
    actual = net.advance(*STEPS[0])
    assert actual.dtype == dtype
    assert_near(actual, net.expected(memory, *STEPS[0]), dtype)
    assert_near(net.memory, memory, torch.float32)


def test_padding_is_zero() -> None:
    net = Net(SHAPES[1])
    out = net.advance(Planned(0, 0, 2), Planned(1, 0, 3, padding=True))
    assert out[:2].all()
    assert not out[2:].any()
    assert net.memory[1].isnan().all()


@pytest.mark.parametrize("pieces", [[1] * 10, [2, 1, 4, 3], [9, 1]], ids=str)
def test_chunks_have_the_bits_of_the_whole(pieces: list[int]) -> None:
    """Among other rows, too."""
    whole, chunked = Net(SHAPES[0], torch.bfloat16), Net(SHAPES[0], torch.bfloat16)
    expected, start, outputs = whole.advance(Planned(0, 0, 10)), 0, []
    for tokens in pieces:
        out = chunked.advance(Planned(1, 0, 3), Planned(0, start, tokens))
        outputs.append(out[3:])
        start += tokens
    assert torch.equal(torch.cat(outputs), expected)
    assert torch.equal(chunked.memory[0, PLACE], whole.memory[0, PLACE])


def test_a_saved_state_is_that_of_the_tokens_before_it() -> None:
    whole, part = Net(SHAPES[0]), Net(SHAPES[0])
    whole.advance(Planned(0, 0, 12, saves=(RowSave(1, 5), RowSave(8, 6), RowSave(12, 7))))
    for tokens, slot in ((1, 5), (8, 6), (12, 7)):
        part.advance(Planned(0, 0, tokens))
        assert torch.equal(whole.memory[slot, PLACE], part.memory[0, PLACE])


@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_drafts_are_settled_by_the_accepted_ones(accepted: int) -> None:
    net, plain = Net(SHAPES[0], torch.bfloat16), Net(SHAPES[0], torch.bfloat16)
    for each in (net, plain):
        each.advance(Planned(0, 0, 7), Planned(1, 0, 4))
    before = net.memory.clone()
    rows = (Planned(0, 7, 4, drafts=3, saves=(RowSave(2, 5), RowSave(4, 6))), Planned(1, 4, 1))
    drafted = net.advance(*rows)
    assert torch.equal(net.memory[0, PLACE], before[0, PLACE]), "not before it is settled"
    net.settle([1 + accepted, 1], *rows)
    undrafted = plain.advance(Planned(0, 7, 1 + accepted), Planned(1, 4, 1))
    assert torch.equal(drafted[: 1 + accepted], undrafted[:-1])
    assert torch.equal(net.memory[:2, PLACE], plain.memory[:2, PLACE])
    assert [bool(net.memory[slot, PLACE].isfinite().all()) for slot in (5, 6)] == [accepted >= 1, accepted == 3]


def test_a_state_that_is_not_finite_stays_in_its_row() -> None:
    net = Net(SHAPES[0])
    net.advance(Planned(0, 0, 3), Planned(1, 0, 2))
    net.memory[0] = torch.nan
    out = net.advance(Planned(0, 3, 1), Planned(1, 2, 1))
    assert out[0].isnan().all()
    assert out[1].isfinite().all()
    assert net.advance(Planned(0, 0, 2)).isfinite().all(), "the state before the first token is not read"
