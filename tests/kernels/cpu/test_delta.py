"""Gated delta nets of the native library against the reference, and their states to the bit."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from kernels.arrays import BFLOAT16, FLOAT32, Array, Floats, Ints
from kernels.cpu.native import Level, NativeLinear, library
from kernels.cpu.native.delta import NativeDelta, gate
from kernels.cpu.native_ops import NativeOps
from kernels.delta import DeltaShape, StateRows
from kernels.exchange import array_of, tensor_of
from kernels.reference_delta import DeltaState, gated_delta
from kernels.weights import DeltaVectors, DeltaWeights, StoredWeight

loaded = library.load()
if loaded is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

EPS = 1e-6
HIDDEN = 24
SHAPES = (
    DeltaShape(key_heads=2, value_heads=4, key_dim=32, value_dim=48, taps=4),
    DeltaShape(key_heads=3, value_heads=3, key_dim=16, value_dim=16, taps=2),
    DeltaShape(key_heads=1, value_heads=2, key_dim=128, value_dim=128, taps=5),
    DeltaShape(key_heads=2, value_heads=6, key_dim=32, value_dim=48, taps=4, tiled=True),
)


@pytest.fixture(params=[Level.PORTABLE, Level.AVX2, Level.AVX512_BF16], ids=lambda level: level.name)
def level(request: pytest.FixtureRequest) -> Iterator[Level]:
    usual = loaded.tp_level()
    if request.param > usual:
        pytest.skip("not on this processor")
    loaded.tp_use_level(request.param)
    yield request.param
    loaded.tp_use_level(usual)


class Case:
    """A net of random weights, and the sequence that it reads."""

    def __init__(self, shape: DeltaShape, tokens: int, seed: int = 0) -> None:
        self.shape, self.generator = shape, np.random.default_rng(seed)
        heads = shape.value_heads
        gates = (self.random(2 * heads, HIDDEN) / 5).astype(BFLOAT16)
        self.gates: NativeLinear = NativeOps(2).pack_parts([StoredWeight.dense(gates)], None)
        self.vectors = DeltaVectors(
            self.random(shape.taps, shape.channels),
            -np.exp(self.random(heads) - 1),
            self.random(heads),
            1 + self.random(shape.value_dim) / 5,
        )
        self.net = NativeDelta(DeltaWeights(shape, self.gates, self.vectors), 0, EPS)
        self.x = self.random(tokens, HIDDEN).astype(BFLOAT16)
        self.mixed = self.random(tokens, shape.channels + shape.values)

    def random(self, *sizes: int) -> Floats:
        return self.generator.standard_normal(sizes).astype(FLOAT32)

    def expected(self) -> tuple[Floats, DeltaState]:
        state = DeltaState.of(torch.zeros(self.shape.words), self.shape)
        vectors = DeltaVectors(*(tensor_of(getattr(self.vectors, name)) for name in self.vectors.__dataclass_fields__))
        out, state = gated_delta(
            tensor_of(self.mixed), tensor_of(self.gates.wide(self.x)), state, self.shape, vectors, EPS
        )
        return array_of(out), state

    def memory(self, slots: int) -> Floats:
        """States of no number: what is read and was not written shows."""
        return np.full((slots, 1, self.shape.words), np.nan, FLOAT32)

    def run(self, memory: Floats, first: int, last: int, drafts: int = 0, saves: object = ()) -> Array:
        """Tokens [first, last) as one row, in slot 0."""
        rows = state_rows(memory, [0], [drafts], saves)
        counts, starts = np.array([last - first]), np.array([first])
        return self.net(self.x[first:last], self.mixed[first:last], counts, starts, rows)


def state_rows(memory: Floats, slots: list[int], drafts: list[int], saves: object = ()) -> StateRows:
    return StateRows(memory, ints(slots), ints(drafts), ints(saves).reshape(-1, 3))


def ints(values: object) -> Ints:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_sequence_is_computed_as_defined(level: Level, shape: DeltaShape) -> None:
    case = Case(shape, tokens=23)
    memory = case.memory(1)
    out = case.run(memory, 0, 23)
    expected, state = case.expected()
    np.testing.assert_allclose(out.astype(FLOAT32), expected, rtol=0.01, atol=2e-5)
    given = DeltaState.of(tensor_of(memory[0, 0]), shape)
    torch.testing.assert_close(given.memory, state.memory, rtol=1e-4, atol=1e-5)
    assert torch.equal(given.kept, state.kept)


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[-1]], ids=str)
@pytest.mark.parametrize("ends", [(1, 23), (2, 3, 4, 23), (16, 23), tuple(range(1, 24))], ids=str)
def test_chunks_change_no_bit(level: Level, shape: DeltaShape, ends: tuple[int, ...]) -> None:
    case = Case(shape, tokens=23)
    whole, parts = case.memory(1), case.memory(1)
    expected = case.run(whole, 0, 23)
    given = [case.run(parts, first, last) for first, last in zip((0, *ends), ends, strict=False)]
    assert np.array_equal(np.concatenate(given), expected)
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[-1]], ids=str)
def test_states_are_saved_where_they_are_due(shape: DeltaShape) -> None:
    case = Case(shape, tokens=23)
    memory, part = case.memory(4), case.memory(1)
    case.run(memory, 0, 23, saves=[(0, 7, 2), (0, 23, 3)])
    case.run(part, 0, 7)
    assert np.array_equal(memory[2], part[0])
    assert np.array_equal(memory[3], memory[0])
    assert np.isnan(memory[1]).all()


@pytest.mark.parametrize("accepted", [0, 1, 4])
def test_drafts_leave_a_state_until_it_is_known_how_many_are_accepted(accepted: int) -> None:
    case = Case(SHAPES[0], tokens=23)
    memory, one_by_one = case.memory(3), case.memory(3)
    case.run(memory, 0, 18)
    case.run(one_by_one, 0, 18)
    before, expected = memory.copy(), case.run(one_by_one, 18, 23)
    saves = [(0, 1, 1), (0, 4, 2)]
    given = case.run(memory, 18, 23, drafts=4, saves=saves)
    assert np.array_equal(given, expected)
    assert np.array_equal(memory, before, equal_nan=True)
    rows = state_rows(memory, [0], [4], saves)
    case.net.settle(ints([5]), ints([18]), rows, ints([accepted]))
    case.run(before, 18, 19 + accepted)
    assert np.array_equal(memory[0], before[0])
    case_of_one = case.memory(1)
    case.run(case_of_one, 0, 19)
    assert np.array_equal(memory[1], case_of_one[0])
    assert np.isnan(memory[2]).all() == (accepted < 3), "a state of rejected drafts is saved, or none of accepted ones"


def test_rows_of_a_step_do_not_see_each_other() -> None:
    case = Case(SHAPES[0], tokens=23)
    alone = [case.memory(1), case.memory(1)]
    case.run(alone[0], 0, 12)
    first = case.run(alone[0], 12, 23)
    second = case.run(alone[1], 0, 12)
    memory = case.memory(3)
    case.run(memory, 0, 12)
    order = [*range(12), *range(12, 23)]
    rows = state_rows(memory, [2, 0], [0, 0])
    together = case.net(case.x[order], case.mixed[order], ints([12, 11]), ints([0, 12]), rows)
    assert np.array_equal(together[:12], second)
    assert np.array_equal(together[12:], first)
    assert np.array_equal(memory[0], alone[0][0])
    assert np.array_equal(memory[2], alone[1][0])
    assert np.isnan(memory[1]).all()


def test_a_gate_multiplies_by_its_sigmoid(level: Level) -> None:
    generator = np.random.default_rng(0)
    by = (100 * generator.standard_normal((5, 37))).astype(FLOAT32)
    y = generator.standard_normal((5, 37)).astype(BFLOAT16)
    expected = tensor_of(y).float() * tensor_of(by).sigmoid()
    gate(y, by)
    torch.testing.assert_close(tensor_of(y).float(), expected, rtol=0.01, atol=1e-30)


@pytest.mark.parametrize(("key_dim", "value_dim", "taps"), [(8, 16, 4), (16, 24, 4), (16, 16, 1), (528, 16, 4)])
def test_other_shapes_are_refused(key_dim: int, value_dim: int, taps: int) -> None:
    with pytest.raises(AssertionError, match="gated delta net"):
        Case(DeltaShape(1, 1, key_dim, value_dim, taps), tokens=1)
