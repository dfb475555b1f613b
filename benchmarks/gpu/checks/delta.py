"""Gated delta nets: rows of all kinds against the reference, and a row's bits however its tokens are computed."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.checks import TOLERANCE, poisoned_memory, share_that_differs, worst_row_error
from benchmarks.gpu.stage import Stage
from kernels import reference
from kernels.delta import DeltaShape
from kernels.device_states import DeviceStates
from kernels.ops import DeltaWeights
from kernels.reference_delta import advance_rows
from kernels.reference_ops import ReferenceLinear
from kernels.step import ROW_WORDS, SAVE_WORDS, Row, RowSave, row_words
from kernels.triton import activation, delta_launch
from kernels.weights import DeltaVectors
from kernels.weights import DeltaWeights as Weights

_EPS = 1e-6
_SHAPES = (
    DeltaShape(key_heads=4, value_heads=8, key_dim=128, value_dim=128, taps=4),
    DeltaShape(key_heads=2, value_heads=6, key_dim=96, value_dim=80, taps=3, tiled=True),
)
_SMALL_SHAPE = DeltaShape(key_heads=1, value_heads=2, key_dim=16, value_dim=16, taps=4)
_SLOTS = 12


def run(stage: Stage) -> None:
    small = stage.scale.chunk < 100
    for dtype in stage.scale.dtypes:
        named = str(dtype).removeprefix("torch.")
        for shape in (_SMALL_SHAPE,) if small else _SHAPES:
            of = f"{shape.value_heads} heads of {shape.key_dim} x {shape.value_dim}, {named}"
            stage.attempt(f"delta net, {of}", partial(_check_rows, stage, of, shape, dtype))
            stage.attempt(f"delta net in chunks, {of}", partial(_check_bits, stage, of, shape, dtype))
        title = f"sigmoid gate, {named}"
        stage.attempt(title, partial(_check_gate, stage, title, dtype))


def _random(stage: Stage, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=stage.generator, device=stage.device).to(dtype)


def _weights(stage: Stage, shape: DeltaShape) -> DeltaWeights:
    heads = shape.value_heads
    rate, bias = -torch.exp(_random(stage, heads) - 1), _random(stage, heads)
    vectors = DeltaVectors(
        _random(stage, shape.taps, shape.channels), rate, bias, 1 + _random(stage, shape.value_dim) / 5
    )
    return Weights(shape, ReferenceLinear(torch.zeros(1, 1), None), vectors)


def _states(memory: Tensor, rows: Sequence[Row], saves: Sequence[RowSave] = ()) -> DeviceStates:
    def words(numbers: Sequence[int], width: int) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=memory.device).view(-1, width)

    owners = [index for index, row in enumerate(rows) for _ in range(row.tokens)]
    encoded = words([word for save in (*saves, RowSave(0, 0)) for word in save], SAVE_WORDS)
    drafted = len(owners) if any(row.drafts for row in rows) else 0
    return DeviceStates(memory, words(row_words(rows), ROW_WORDS), words(owners, 1).flatten(), encoded, drafted)


def _inputs(stage: Stage, shape: DeltaShape, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    mixed = _random(stage, tokens, shape.channels + shape.values, dtype=dtype)
    return mixed, _random(stage, tokens, 2 * shape.value_heads, dtype=dtype)


def _memory(stage: Stage, shape: DeltaShape, slots: int) -> Tensor:
    """States of which the first ones are there, and the others are NaN."""
    memory = _random(stage, slots, 1, shape.words)
    memory[slots // 2 :] = torch.nan
    return memory


def _check_rows(stage: Stage, of: str, shape: DeltaShape, dtype: torch.dtype) -> None:
    """A fresh row and one in the midst of its sequence, with saves; a decode row, drafts and padding."""
    chunk = stage.scale.chunk
    saves = [RowSave(2, 8), RowSave(chunk - 1, 9), RowSave(1, 10)]
    rows = [Row(0, 70, 1, 0, 1, 0, 0), Row(1, 9, 4, 3, 0, 1, 1), Row(-1, 0, 1, 0, 0, 5)]
    rows += [Row(6, 0, chunk, 0, 1, 6, 6, saves=2), Row(2, 5, 3, 0, 1, 6 + chunk, 2, saves=3)]
    mixed, gates = _inputs(stage, shape, 9 + chunk, dtype)
    weights, memory = _weights(stage, shape), _memory(stage, shape, _SLOTS)
    on_host = memory.cpu().clone()
    vectors = DeltaVectors(*(each.cpu() for each in _each(weights.vectors)))
    settled = torch.tensor([1, 2, 1, chunk, 3], dtype=torch.int32)
    states = _states(memory, rows, saves)
    with poisoned_memory():
        actual = delta_launch.gated_delta(mixed, gates, weights, 0, states, _EPS)
        delta_launch.settle_delta(mixed[:5], gates[:5], weights, 0, states, settled.to(stage.device))
    of_host = mixed.cpu(), gates.cpu(), 0, _states(on_host, rows, saves), shape, vectors, _EPS
    expected = advance_rows(*of_host)
    advance_rows(*of_host, settled)
    stage.checked(f"delta net, {of}", worst_row_error(actual.cpu(), expected), TOLERANCE[dtype])
    written = [0, 1, 2, 6, 8, 9, 10]
    stage.checked(f"states, {of}", worst_row_error(memory[written].cpu(), on_host[written]), 1e-4)
    others = [slot for slot in range(_SLOTS) if slot not in written]
    words = (each[others].contiguous().view(torch.int32) for each in (memory.cpu(), on_host))
    stage.checked(f"other states, {of}", share_that_differs(*words), 0.0)


def _check_bits(stage: Stage, of: str, shape: DeltaShape, dtype: torch.dtype) -> None:
    """A sequence at once, and token by token and in a chunk among others."""
    tokens = min(stage.scale.chunk, 40)
    mixed, gates = _inputs(stage, shape, tokens, dtype)
    weights = _weights(stage, shape)
    whole, parts = (torch.full((2, 1, shape.words), torch.nan, device=stage.device) for _ in range(2))
    expected = delta_launch.gated_delta(mixed, gates, weights, 0, _states(whole, [Row(0, 0, tokens, 0, 1, 0, 0)]), _EPS)
    outputs, single = [], tokens // 2
    for start in range(single):
        one = slice(start, start + 1)
        rows = [Row(0, start, 1, 0, 1, 0, 0)]
        outputs.append(delta_launch.gated_delta(mixed[one], gates[one], weights, 0, _states(parts, rows), _EPS))
    rows = [Row(1, 0, single, 0, 1, 0, 1), Row(0, single, tokens - single, 0, 1, single, 0)]
    outputs.append(delta_launch.gated_delta(mixed, gates, weights, 0, _states(parts, rows), _EPS)[single:])
    stage.checked(f"delta net in chunks, {of}", share_that_differs(torch.cat(outputs), expected), 0.0)
    stage.checked(f"states after chunks, {of}", share_that_differs(parts[0], whole[0]), 0.0)


def _check_gate(stage: Stage, title: str, dtype: torch.dtype) -> None:
    x, gate = (_random(stage, stage.scale.chunk, 4096, dtype=dtype) for _ in range(2))
    with poisoned_memory():
        output = activation.sigmoid_mul(x, gate)
    stage.checked(title, worst_row_error(output, reference.sigmoid_mul(x.double(), gate.double())), TOLERANCE[dtype])


def _each(vectors: DeltaVectors[Tensor]) -> tuple[Tensor, ...]:
    return vectors.convolution, vectors.decay_rate, vectors.step_bias, vectors.norm
