"""Products with adapters: close to the definition at every level, and to the bit the same for a row in any batch."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu, silu

from kernels.adapters import (
    ADAPTED_PRODUCTS,
    NO_ADAPTER,
    AdaptedProduct,
    AdapterWeights,
    LayerAdapter,
    LowRankPart,
    Parts,
)
from kernels.arrays import address, int_array
from kernels.cpu.memory import WeightMemory
from kernels.cpu.native import Level, NativeLinear, abi, pack_gate_up, start
from kernels.cpu.native.adapter_packing import NativeLayer, model_layout, product_number
from kernels.cpu.native.adapters import AdapterTable, NativeAdapter
from kernels.cpu.native.library import load
from kernels.cpu.native.linear import Change
from kernels.exchange import array_of, tensor_of
from kernels.reference_adapters import add_low_rank
from kernels.weights import LayerWeights, MlpWeights, StoredWeight
from tests.kernels.cpu.faces import dense
from tests.kernels.cpu.paged import levels, random, using

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

INPUTS, QUERIES, KEYS, INNER = 96, 80, 16, 72
SLOTS = 22
FORMATS = ("dense", "int8", "int4")

Adapter = Mapping[AdaptedProduct, Parts]


def part(first: int, outputs: int, inputs: int, rank: int, seed: int) -> LowRankPart:
    """Of numbers that bf16 holds."""
    down, up = random(rank, inputs, seed=seed), random(outputs, rank, seed=seed + 1)
    return LowRankPart((down.float() / 8).numpy(), (up.float() / 4).numpy(), first)


@dataclass(frozen=True)
class Layer:
    """Packed products of a layer, and the weights that they compute with."""

    packed: NativeLayer
    gates: Tensor

    def linear(self, product: AdaptedProduct) -> NativeLinear:
        assert isinstance(self.packed.mlp, MlpWeights)
        assert isinstance(self.packed.qkv, NativeLinear)
        return {
            "qkv": self.packed.qkv,
            "output": self.packed.output,
            "gate_up": self.packed.mlp.gate_up,
            "down": self.packed.mlp.down,
        }[product]


def layer_of(format: str = "dense", inputs: int = INPUTS) -> Layer:
    memory = WeightMemory()

    def stored(rows: int, columns: int, seed: int) -> StoredWeight:
        return replace(dense(random(rows, columns, seed=seed) / columns**0.5), format=format)

    qkv = [stored(QUERIES, inputs, 1), stored(KEYS, inputs, 2), stored(KEYS, inputs, 3)]
    gate, up = stored(INNER, inputs, 4), stored(INNER, inputs, 5)
    down = StoredWeight.dense(stored(inputs, INNER, 7).rows)
    packed: NativeLayer = LayerWeights(
        attention_norm=None,
        qkv=NativeLinear(qkv, array_of(random(QUERIES + 2 * KEYS, seed=8)), memory),
        head_norms=None,
        output=NativeLinear([stored(inputs, inputs, 6)], None, memory),
        mlp_norm=None,
        mlp=MlpWeights(pack_gate_up(gate, up, None, memory), NativeLinear([down], None, memory)),
    )
    gates = [tensor_of(NativeLinear([each], None, memory).rows(range(INNER))) for each in (gate, up)]
    return Layer(packed, torch.cat(gates))


def adapter(slot: int, inputs: int = INPUTS) -> Adapter:
    """Adapters of different products, outputs and ranks, odd ones among them."""
    rank, seed = (1, 3, 8, 16, 21)[slot % 5], 100 * slot
    queries = part(0, QUERIES, inputs, rank, seed)
    values = part(QUERIES + KEYS, KEYS, inputs, rank + slot % 2, seed + 10)
    keys = part(QUERIES, KEYS, inputs, 2, seed + 20)
    fused = (part(0, 2 * INNER, inputs, rank, seed + 30),)
    both = (part(0, INNER, inputs, rank, seed + 40), part(INNER, INNER, inputs, rank + 1, seed + 50))
    some: Adapter = {"qkv": (queries, values), "gate_up": both, "down": (part(0, inputs, INNER, rank, seed + 60),)}
    others: Adapter = {"qkv": (values, keys), "gate_up": fused, "output": (part(0, inputs, inputs, rank, seed + 70),)}
    one: Adapter = {"qkv": (part(5, 39, inputs, rank, seed),), "gate_up": (part(INNER - 9, 20, inputs, 4, seed),)}
    return (some, others, one)[slot % 3]


class Adapted:
    """A layer with adapters in all slots."""

    def __init__(self, layer: Layer, adapters: Mapping[int, Adapter]) -> None:
        self.layer, self.adapters = layer, adapters
        self.table = AdapterTable(SLOTS)
        for slot, parts in adapters.items():
            own = AdapterWeights([LayerAdapter(**dict(parts))])
            self.table.put(slot, NativeAdapter.pack(own, model_layout([layer.packed])))

    def __call__(
        self, product: AdaptedProduct, x: Tensor, slots: Sequence[int], counts: Sequence[int], store: abi.Store
    ) -> Tensor:
        """The product of rows of `counts` tokens, with the adapters in `slots`."""
        lens, of_row = int_array(list(counts)), int_array(list(slots))
        rows = abi.Rows(rows=len(lens), tokens=len(x), query_lens=address(lens), adapters=self.table.use(of_row))
        change = Change(ctypes.addressof(rows), product_number(0, product)) if rows.adapters else None
        linear, numbers = self.layer.linear(product), array_of(x)
        if store == abi.Store.FLOAT32:
            return tensor_of(linear.wide(numbers, change))
        if store == abi.Store.BF16:
            return tensor_of(linear(numbers, change))
        return tensor_of(linear.gated(numbers, store, change))

    def expected(self, product: AdaptedProduct, x: Tensor, slots: Sequence[int]) -> Tensor:
        """float32 [T, N] by the definition, of tokens with these slots, in the order that parts count outputs in."""
        if product == "gate_up":
            y = x.float() @ self.layer.gates.T
        else:
            y = tensor_of(self.layer.linear(product).wide(array_of(x)))
        parts = {slot: parts[product] for slot, parts in self.adapters.items() if product in parts}
        return add_low_rank(y, x, parts, [slot if slot in parts else NO_ADAPTER for slot in slots])


@pytest.fixture(scope="module")
def adapted() -> Adapted:
    return Adapted(layer_of(), {slot: adapter(slot) for slot in range(SLOTS)})


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    start(2)
    yield
    start(1)


def inputs_of(linear: NativeLinear, tokens: int, seed: int = 0) -> Tensor:
    return random(tokens, linear.in_features, seed=seed)


def store_of(product: AdaptedProduct) -> abi.Store:
    return abi.Store.SILU_MUL if product == "gate_up" else abi.Store.FLOAT32


def assert_close(actual: Tensor, expected: Tensor) -> None:
    bound = 2.0**-8 if actual.dtype == torch.bfloat16 else 2e-5
    assert ((actual.float() - expected).abs() <= bound * (expected.abs() + expected.abs().mean())).all()


@pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)
@pytest.mark.parametrize("format", FORMATS)
def test_every_product_is_close_to_the_definition(level: Level, format: str) -> None:
    with using(level):
        adapted = Adapted(layer_of(format), {slot: adapter(slot) for slot in range(SLOTS)})
        slots = [NO_ADAPTER, 0, 1, 2, 2, NO_ADAPTER, 7, 4, 0]
        counts = [3, 1, 60, 2, 5, 1, 1, 7, 4]
        of_token = np.repeat(slots, counts).tolist()
        for product in ADAPTED_PRODUCTS:
            x = inputs_of(adapted.layer.linear(product), len(of_token))
            actual = adapted(product, x, slots, counts, store_of(product))
            expected = adapted.expected(product, x, of_token)
            if product == "gate_up":
                gates, ups = expected.chunk(2, dim=1)
                assert_close(actual[:, :INNER], silu(gates) * ups)
                assert_close(
                    adapted(product, x, slots, counts, abi.Store.GELU_MUL)[:, :INNER],
                    gelu(gates, approximate="tanh") * ups,
                )
                continue
            assert_close(actual, expected)
            assert torch.equal(adapted(product, x, slots, counts, abi.Store.BF16), actual.bfloat16()), "rounded once"


@pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)
@pytest.mark.parametrize("product", ADAPTED_PRODUCTS)
def test_a_row_is_the_same_in_any_batch(adapted: Adapted, level: Level, product: AdaptedProduct) -> None:
    """Twenty adapters of a row each, several rows of one, prompts, and rows without one, on any number of threads."""
    store = store_of(product)
    x = inputs_of(adapted.layer.linear(product), 140)
    slots = [*range(20), NO_ADAPTER, 3, 3, NO_ADAPTER, 4, 5]
    counts = [1] * 20 + [9, 1, 5, 1, 64, 40]
    firsts = [sum(counts[:row]) for row in range(len(counts))]
    with using(level, 1):
        together = adapted(product, x, slots, counts, store)
        plain = adapted(product, x, [NO_ADAPTER], [140], store)
        for slot, count, first in zip(slots, counts, firsts, strict=True):
            tokens = slice(first, first + count)
            alone = adapted(product, x[tokens], [slot], [count], store)
            assert torch.equal(together[tokens], alone)
            each = [adapted(product, x[token, None], [slot], [1], store) for token in range(first, first + count)]
            assert torch.equal(torch.cat(each), alone), "chunks of one token"
            if slot == NO_ADAPTER or product not in adapted.adapters[slot]:
                assert torch.equal(alone, plain[tokens])
            else:
                assert not torch.equal(alone, plain[tokens])
    with using(level, 3):
        assert torch.equal(adapted(product, x, slots, counts, store), together)


@settings(deadline=None, max_examples=25)
@given(
    rows=st.lists(st.tuples(st.integers(-1, SLOTS - 1), st.integers(1, 9)), min_size=1, max_size=8),
    product=st.sampled_from(ADAPTED_PRODUCTS),
    seed=st.integers(0, 99),
)
def test_any_batch(adapted: Adapted, rows: list[tuple[int, int]], product: AdaptedProduct, seed: int) -> None:
    slots, counts = zip(*rows, strict=True)
    x = inputs_of(adapted.layer.linear(product), sum(counts), seed)
    together = adapted(product, x, slots, counts, store_of(product)).split(counts)
    for slot, own, actual in zip(slots, x.split(counts), together, strict=True):
        assert torch.equal(actual, adapted(product, own, [slot], [len(own)], store_of(product)))


def test_a_product_of_odd_width() -> None:
    adapted = Adapted(layer_of(inputs=41), {slot: adapter(slot, 41) for slot in range(3)})
    slots = [0, 1, 2, NO_ADAPTER]
    x = inputs_of(adapted.layer.linear("qkv"), 4)
    assert_close(adapted("qkv", x, slots, [1] * 4, abi.Store.FLOAT32), adapted.expected("qkv", x, slots))


def test_an_adapter_of_no_products_adds_nothing() -> None:
    adapted = Adapted(layer_of(), {0: {}})
    x = inputs_of(adapted.layer.linear("qkv"), 3)
    plain = adapted("qkv", x, [NO_ADAPTER], [3], abi.Store.FLOAT32)
    assert torch.equal(adapted("qkv", x, [0], [3], abi.Store.FLOAT32), plain)


def test_an_empty_slot_is_refused(adapted: Adapted) -> None:
    table = AdapterTable(2)
    for slot in (0, 2, -2):
        with pytest.raises(AssertionError, match=f"no adapter in slot {slot}"):
            table.use(int_array([slot, NO_ADAPTER]))
    assert table.use(int_array([NO_ADAPTER])) is None
