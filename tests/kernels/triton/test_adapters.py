"""Products with adapters equal the reference, and a token's numbers depend on it alone."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.execution.device.inputs import encoded
from kernels.adapter_sizes import LayerSizes, ProductSize
from kernels.adapters import NO_ADAPTER, AdaptedProduct, AdapterWeights, LayerAdapter, LowRankPart
from kernels.reference_adapters import ReferenceAdapters, token_adapters
from kernels.step import Row
from kernels.triton import adapter_slots
from kernels.triton.adapter_slots import TritonAdapters, adapter_bytes
from kernels.triton.tuning_adapters import FEW_TOKENS, MANY_TOKENS, SPLIT_INPUTS, adapter_tile
from tests.support.kernel_tensors import DEVICE, DTYPES, assert_product, random
from tests.support.tiny_adapters import random_adapter

LAYERS: Sequence[LayerSizes] = (
    {"qkv": ProductSize((48, 16, 16), 40), "output": ProductSize((24,), SPLIT_INPUTS + 72)},
    {"gate_up": ProductSize((136, 20), 24), "down": ProductSize((7,), 33), "output": ProductSize((24,), 48)},
)
PRODUCTS = [(index, product) for index, sizes in enumerate(LAYERS) for product in sizes]
SLOTS = 20


def memories(
    dtype: torch.dtype, ranks: Sequence[int], max_rank: int = 16, slots: int = SLOTS
) -> tuple[TritonAdapters, ReferenceAdapters]:
    """With an adapter of each rank in slots 0, 1, ..."""
    memory, reference = (
        TritonAdapters(LAYERS, slots, max_rank, dtype, DEVICE),
        ReferenceAdapters(LAYERS, slots, max_rank),
    )
    for slot, rank in enumerate(ranks):
        weights = random_adapter(LAYERS, slot, rank, ("qkv", "output") if slot == 1 else ("output", "gate_up", "down"))
        memory.put(slot, memory.pack(weights))
        reference.put(slot, weights)
    return memory, reference


def step(slots: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, token_rows, slot_mapping and adapters of a step of one token a row."""
    count = len(slots)
    rows = encoded([Row(count - 1 - index, 0, 1, 0, 0, index) for index in range(count)])
    each = torch.arange(count, dtype=torch.int32, device=DEVICE)
    adapters = torch.tensor(slots, dtype=torch.int32, device=DEVICE).flip(0)
    return torch.from_numpy(rows).to(DEVICE), each, each.long(), adapters


def added(memory: TritonAdapters | ReferenceAdapters, slots: Sequence[int], dtype: torch.dtype) -> list[torch.Tensor]:
    """Each product of tokens with these adapters, and what they add."""
    of_step = memory.of_step(*step(slots))
    results = []
    for number, (layer, product) in enumerate(PRODUCTS):
        size = LAYERS[layer][product]
        x = random(len(slots), size.inputs, dtype=dtype, seed=number)
        y = random(len(slots), size.outputs, dtype=dtype, seed=10 + number)
        results.append(of_step.add(layer, product, y.clone(), x))
    return results


@pytest.mark.parametrize("dtype", DTYPES)
def test_adapters(dtype: torch.dtype) -> None:
    memory, reference = memories(dtype, (8, 3, 16))
    slots = [0, 2, NO_ADAPTER, 1, 1, 0, 0, 2, NO_ADAPTER, *[0] * 17]
    for actual, expected in zip(added(memory, slots, dtype), added(reference, slots, dtype), strict=True):
        assert_product(actual, expected, dtype)


def test_without_adapters_nothing_changes() -> None:
    """Nor where a slot's adapter does not change the product."""
    memory, _ = memories(torch.float16, (8, 8))
    none, other = (added(memory, [slot] * 3, torch.float16) for slot in (NO_ADAPTER, 1))
    expected = [
        random(3, LAYERS[i][name].outputs, dtype=torch.float16, seed=10 + n) for n, (i, name) in enumerate(PRODUCTS)
    ]
    assert all(map(torch.equal, none, expected))
    changed = [name for (_, name), y, base in zip(PRODUCTS, other, none, strict=True) if not torch.equal(y, base)]
    assert changed == ["qkv", "output", "output"]


@pytest.mark.parametrize("count", [0, 1, 3, 20])
def test_a_token_alone_equals_the_token_among_others(count: int) -> None:
    """To the bit, whatever the others have, also where they make the tiles larger."""
    memory, _ = memories(torch.float16, [1 + 2 * slot % 16 for slot in range(count)])
    slots = [slot % (count + 1) - 1 for slot in range(37)]
    together = added(memory, slots, torch.float16)
    for token in (5, 36):
        of_step = memory.of_step(*step([slots[token]]))
        for number, ((layer, product), among) in enumerate(zip(PRODUCTS, together, strict=True)):
            size = LAYERS[layer][product]
            x, y = (
                random(37, width, dtype=torch.float16, seed=seed)[token : token + 1].clone()
                for width, seed in ((size.inputs, number), (size.outputs, 10 + number))
            )
            assert torch.equal(of_step.add(layer, product, y, x)[0], among[token])


def test_large_tiles_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, _ = memories(torch.bfloat16, (5, 8, 16))
    slots = [0] * 20 + [1, NO_ADAPTER, 2] * 3
    assert (adapter_tile(len(slots)), adapter_tile(257)) == (FEW_TOKENS, MANY_TOKENS)
    small = added(memory, slots, torch.bfloat16)
    monkeypatch.setattr(adapter_slots, "adapter_tile", lambda tokens: MANY_TOKENS)
    assert all(map(torch.equal, small, added(memory, slots, torch.bfloat16)))


def test_the_tokens_of_a_row_have_its_adapter() -> None:
    """Padding has none, whatever its row's slot holds."""
    rows = [Row(2, 5, 3, 0, 1, 0), Row(-1, 0, 2, 0, 0, 3), Row(0, 9, 2, 1, 0, 5)]
    words = torch.from_numpy(encoded(rows)).to(DEVICE)
    token_rows = torch.tensor([0, 0, 0, 1, 1, 2, 2], dtype=torch.int32, device=DEVICE)
    slot_mapping = torch.tensor([-1, 7, 8, -1, -1, 3, 4], device=DEVICE)
    adapters = torch.tensor([1, 0, 4], dtype=torch.int32, device=DEVICE)
    assert token_adapters(words, token_rows, slot_mapping, adapters) == [-1, 4, 4, -1, -1, 1, 1]
    memory, _ = memories(torch.float32, (), slots=5)
    tiles = memory.of_step(words, token_rows, slot_mapping, adapters)._tiles
    assert tiles.experts.tolist() == [1, 4, -1, -1, -1]
    assert tiles.assignments.view(5, -1)[:2, :3].tolist() == [[5, 6, -1], [1, 2, -1]]


def test_a_part_over_several_projections_and_two_within_one() -> None:
    """As where a checkpoint fuses q, k and v, and where it splits them further."""
    numbers = np.random.default_rng(0)

    def part(rank: int, outputs: int, first: int) -> LowRankPart:
        down, up = numbers.standard_normal((rank, 40)), numbers.standard_normal((outputs, rank))
        return LowRankPart(down.astype(np.float32), up.astype(np.float32), first)

    wide, narrow = part(4, 60, 10), [part(2, 20, first) for first in (0, 25)]
    memory, reference = TritonAdapters(LAYERS, 2, 8, torch.float32, DEVICE), ReferenceAdapters(LAYERS, 2, 8)
    for slot, parts in enumerate(((wide,), narrow)):
        weights = AdapterWeights([LayerAdapter(qkv=tuple(parts)), LayerAdapter()])
        memory.put(slot, memory.pack(weights))
        reference.put(slot, weights)
    actual, expected = (added(each, [0, 1, 0], torch.float32)[0] for each in (memory, reference))
    assert_product(actual, expected, torch.float32)


def test_slots_are_replaced_in_place() -> None:
    """By an adapter of another rank that changes other products: nothing of the one before is left."""
    memory, reference = memories(torch.float32, (16,))
    address = memory.memory.data_ptr()
    assert memory.is_resident(0)
    assert not memory.is_resident(1)
    products: tuple[AdaptedProduct, ...] = ("qkv",)
    weights = random_adapter(LAYERS, 5, 2, products)
    packed = memory.pack(weights)
    memory.put(0, None)
    assert not memory.is_resident(0)
    memory.put(0, packed)
    reference.put(0, weights)
    for actual, expected in zip(added(memory, [0], torch.float32), added(reference, [0], torch.float32), strict=True):
        assert_product(actual, expected, torch.float32)
    assert memory.memory.data_ptr() == address


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="ranks up to 64, not 65; use device cpu"):
        TritonAdapters(LAYERS, 1, 65, torch.float32, DEVICE)
    memory = TritonAdapters(LAYERS, 1, 9, torch.float32, DEVICE)
    assert memory.memory.nbytes == adapter_bytes(LAYERS, 1, 9, torch.float32)
    memory.pack(random_adapter(LAYERS, 1, 16))
    with pytest.raises(ValueError, match="an adapter of rank 32 in slots of rank 16"):
        memory.pack(random_adapter(LAYERS, 1, 17))
    with pytest.raises(ValueError, match="an adapter of 1 layers"):
        memory.pack(AdapterWeights([LayerAdapter()]))
