"""Weights packed for the native library from Python: parts, formats, odd widths, gates and ups, the table."""

import pytest
import torch

from kernels.arrays import address
from kernels.cpu import native
from kernels.cpu.memory import WeightMemory
from kernels.cpu.native import takes
from kernels.cpu.native.library import load
from kernels.cpu.native_ops import NativeOps
from kernels.exchange import array_of, tensor_of
from kernels.weights import DENSE, StoredWeight
from tests.kernels.cpu.faces import EmbeddingFace, LinearFace, dense

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

bf16 = torch.bfloat16


@pytest.fixture(autouse=True)
def one_thread() -> None:
    native.start(1)


def whole(*shape: int, seed: int = 0) -> torch.Tensor:
    """Small whole numbers: bf16 holds them, and their products are exact in float32, in any order."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).to(bf16)


def q8_0(rows: torch.Tensor, scale: float = 1.0) -> StoredWeight:
    """ggml's blocks of 32: a float16 scale, then int8. `rows` are whole; the weight is those times the scale."""
    out_features, in_features = rows.shape
    numbers = rows.to(torch.int8).view(out_features, -1, 32)
    scales = torch.full((out_features, in_features // 32, 1), scale, dtype=torch.float16).view(torch.int8)
    blocks = torch.cat((scales, numbers), dim=2).view(torch.uint8).flatten(1)
    return StoredWeight("q8_0", array_of(blocks), out_features, in_features)


@pytest.mark.parametrize("in_features", [64, 33, 1])
@pytest.mark.parametrize("biased", [True, False])
def test_parts_lie_one_below_the_other(in_features: int, biased: bool) -> None:
    weights = [whole(rows, in_features, seed=rows) for rows in (40, 7, 33)]
    bias = whole(80, seed=5) if biased else None
    x = whole(5, in_features, seed=1)
    linear = LinearFace.packed([dense(weight) for weight in weights], bias)
    expected = x.float() @ torch.cat(weights).float().T
    if bias is not None:
        expected += bias.float()
    assert (linear.in_features, linear.out_features) == (in_features, 80)
    assert torch.equal(linear.wide(x), expected)
    assert torch.equal(linear(x), expected.to(bf16))


@pytest.mark.parametrize("in_features", [64, 33])
def test_rows_may_lie_in_any_way(in_features: int) -> None:
    weight, x = whole(40, in_features), whole(2 * in_features, 10, seed=1)
    linear, expected = LinearFace.packed([dense(weight)]), (x.float().T[:, ::2] @ weight.float().T)
    for way in (x.T[:, ::2], x[::2].T.contiguous(), torch.cat((x[::2].T, x[::2].T), 1)[:, in_features:]):
        assert torch.equal(linear.wide(way), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_and_biases_of_other_dtypes_are_rounded_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in ((40, 64), (40,)))
    linear = LinearFace.packed([dense(weight)], bias)
    assert torch.equal(linear.rows(range(40)), weight.to(bf16).float())
    nothing, expected = torch.zeros(2, 64, dtype=bf16), bias.float().expand(2, 40).clone()
    assert torch.equal(linear.wide(nothing), expected)
    bias.zero_()
    assert torch.equal(linear.wide(nothing), expected), "a copy: the file may go"


def test_parts_of_different_formats() -> None:
    weights = [whole(32, 64), whole(9, 64, seed=1), whole(32, 64, seed=2)]
    parts = [q8_0(weights[0]), dense(weights[1]), q8_0(weights[2], 0.5)]
    x = whole(3, 64, seed=3)
    expected = x.float() @ torch.cat((weights[0], weights[1], weights[2] / 2)).float().T
    torch.testing.assert_close(LinearFace.packed(parts).wide(x), expected, rtol=1e-4, atol=0.05)


def test_rows_of_all_parts() -> None:
    weights = [whole(32, 64), whole(9, 64, seed=1)]
    linear = LinearFace.packed([q8_0(weights[0]), dense(weights[1])])
    assert torch.equal(linear.rows([40, 0, 31, 32]), torch.cat(weights).float()[[40, 0, 31, 32]])
    with pytest.raises(IndexError):
        linear.rows([41])
    with pytest.raises(IndexError):
        linear.rows([-1])


@pytest.mark.parametrize(("vocab", "width"), [(70, 32), (33, 17)])
def test_a_table_is_its_head_too(vocab: int, width: int) -> None:
    table = whole(vocab, width)
    embedding = EmbeddingFace(dense(table))
    ids = torch.tensor([0, vocab - 1, 5, 5])
    assert torch.equal(embedding(ids), table[ids])
    assert torch.equal(embedding.table.wide(embedding(ids)), table[ids].float() @ table.float().T)


@pytest.mark.parametrize("inner", [16, 40, 5])
def test_gates_and_ups_come_in_turn(inner: int) -> None:
    gate, up, bias = whole(inner, 32), whole(inner, 32, seed=1), whole(2 * inner, seed=2)
    packed = LinearFace.gate_up(dense(gate), dense(up), bias)
    x = whole(3, 32, seed=3)
    turns = packed.wide(x).view(3, -1, 2, 16)
    gates, ups = turns[:, :, 0].flatten(1), turns[:, :, 1].flatten(1)
    assert torch.equal(gates[:, :inner], x.float() @ gate.float().T + bias[:inner].float())
    assert torch.equal(ups[:, :inner], x.float() @ up.float().T + bias[inner:].float())
    assert not gates[:, inner:].any(), "filled up with zeros"
    assert not ups[:, inner:].any()


def test_gates_and_ups_of_different_formats_are_expanded() -> None:
    gate, up = whole(32, 64), whole(32, 64, seed=1)
    mixed = LinearFace.gate_up(q8_0(gate), dense(up))
    alike = LinearFace.gate_up(dense(gate), dense(up))
    x = whole(3, 64, seed=3)
    assert torch.equal(mixed.wide(x), alike.wide(x))


def test_nothing_is_kept_of_what_is_packed() -> None:
    """Weights are views of a file, which may go when a model is loaded."""
    ops, x = NativeOps(1), whole(3, 64)
    table, gate, up, bias = whole(40, 64), whole(16, 64, seed=1), whole(16, 64, seed=2), whole(32, seed=3).float()
    embedding = ops.pack_embedding(dense(table))
    head, gate_up = ops.tied_head(embedding), ops.pack_gate_up(dense(gate), dense(up), array_of(bias))
    vector, rows = ops.vector(array_of(bias)), ops.pack_rows(array_of(table))
    expected = (x.float() @ table.float().T, x.float() @ torch.cat((gate, up)).float().T + bias, bias.clone())
    for given in (table, gate, up, bias):
        given.fill_(-1)
    assert torch.equal(tensor_of(head.wide(array_of(x))), expected[0])
    assert torch.equal(tensor_of(rows(array_of(x))), expected[0])
    assert torch.equal(tensor_of(gate_up.wide(array_of(x))), expected[1])
    assert torch.equal(tensor_of(vector), expected[2])


def test_what_is_taken() -> None:
    assert takes(DENSE, 7)
    assert takes("q8_0", 64)
    assert not takes("q8_0", 40), "a block has 32"
    assert not takes("q9_7", 64)


def test_memory_is_aligned_and_apart() -> None:
    memory = WeightMemory()
    pieces = [memory.take(count) for count in (1, 64, 100, 80 << 20, 3)]
    for value, piece in enumerate(pieces, 1):
        assert address(piece) % 64 == 0
        piece[[0, -1]] = value
    assert [int(piece[-1]) for piece in pieces] == [1, 2, 3, 4, 5]
    assert [len(piece) for piece in pieces] == [1, 64, 100, 80 << 20, 3]
