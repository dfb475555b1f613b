"""Products with adapters against their meaning in plain torch; alone and among others, and while slots are filled."""

import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.checks import TOLERANCE, poisoned_memory, share_that_differs, worst_row_error
from benchmarks.gpu.stage import Stage
from engine.execution.device.inputs import encoded
from kernels.adapter_sizes import LayerSizes, ProductSize
from kernels.adapters import NO_ADAPTER, AdaptedProduct
from kernels.device_adapters import StepAdapters
from kernels.reference_adapters import ReferenceAdapters
from kernels.step import Row
from kernels.triton.adapter_slots import TritonAdapters
from kernels.triton.tuning_adapters import FEW_TOKENS, MANY_TOKENS
from tests.support.tiny_adapters import random_adapter

_SLOTS = 4
_COPY_SECONDS = 10.0


def run(stage: Stage) -> None:
    for dtype in stage.scale.dtypes:
        for max_rank in stage.scale.adapted_ranks:
            title = f"adapters of ranks up to {max_rank}, {dtype}"
            stage.attempt(title, partial(_check, stage, title, max_rank, dtype))


def _layers(stage: Stage) -> Sequence[LayerSizes]:
    """One layer, of products with one, two and three parts."""
    outputs, inputs = stage.scale.checked_product
    return [
        {
            "qkv": ProductSize((outputs, 48, 48), inputs),
            "output": ProductSize((outputs,), 96),
            "gate_up": ProductSize((72, 72), inputs + 8),
        }
    ]


def _check(stage: Stage, title: str, max_rank: int, dtype: torch.dtype) -> None:
    """Of unequal ranks. Among others, in the tiles of few tokens and of many, tokens are what they are alone."""
    layers = _layers(stage)
    memory = TritonAdapters(layers, _SLOTS, max_rank, dtype, stage.device)
    reference = ReferenceAdapters(layers, _SLOTS, max_rank)
    for slot, rank in enumerate((max_rank, max_rank // 2, max_rank - 1)):
        weights = random_adapter(layers, slot, rank)
        memory.put(slot, memory.pack(weights))
        reference.put(slot, weights)
        _wait(memory, slot)
    for tokens in stage.scale.checked_rows:
        slots = [slot % _SLOTS - 1 for slot in range(tokens)]
        of_step, expected = (each.of_step(*_step(stage, slots)) for each in (memory, reference))
        for product, size in layers[0].items():
            x, y = (_random(stage, tokens, width).to(dtype) for width in (size.inputs, size.outputs))
            with poisoned_memory():
                actual = of_step.add(0, product, y.clone(), x)
            name = f"{title}, {product}, {tokens} tokens"
            error = worst_row_error(actual, expected.add(0, product, y, x))
            stage.checked(name, error, 2 * TOLERANCE[dtype])
            last = slice(tokens - 1, tokens)
            alone = _added(memory.of_step(*_step(stage, slots[-1:])), product, y[last], x[last])
            stage.checked(f"{name}: the last alone", share_that_differs(alone, actual[last]), 0.0, "must be the same")
            many = -(-stage.scale.adapted_tokens // tokens)
            times = [each.repeat(many, 1) for each in (y, x)]
            among = _added(memory.of_step(*_step(stage, slots * many)), product, *times)[:tokens]
            detail = f"tiles of {FEW_TOKENS.row_tile} and {MANY_TOKENS.row_tile}"
            stage.checked(f"{name}: among many", share_that_differs(among, actual), 0.0, detail)


def _added(of_step: StepAdapters, product: AdaptedProduct, y: Tensor, x: Tensor) -> Tensor:
    with poisoned_memory():
        return of_step.add(0, product, y.clone(), x.clone())


def _step(stage: Stage, slots: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, token_rows, slot_mapping and adapters of a step of one token a row."""
    assert min(slots) >= NO_ADAPTER
    rows = encoded([Row(index, 0, 1, 0, 0, index) for index in range(len(slots))])
    each = torch.arange(len(slots), dtype=torch.int32, device=stage.device)
    adapters = torch.tensor(slots, dtype=torch.int32, device=stage.device)
    return torch.from_numpy(rows).to(stage.device), each, each.long(), adapters


def _wait(memory: TritonAdapters, slot: int) -> None:
    until_s = time.monotonic() + _COPY_SECONDS
    while not memory.is_resident(slot):
        assert time.monotonic() < until_s, f"slot {slot} is not filled within {_COPY_SECONDS:g} s"
        time.sleep(0.001)


def _random(stage: Stage, *shape: int) -> Tensor:
    return torch.randn(shape, generator=stage.generator, device=stage.device)
