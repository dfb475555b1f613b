"""A model with adapters in torch on the CPU: as with the adapter merged, whatever the other rows of a step have."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.loader import load_model
from engine.models.torch_model import TorchModel
from engine.models.transformer import Transformer
from kernels.adapter_sizes import check_adapter
from kernels.adapters import NO_ADAPTER, AdaptedProduct, AdapterWeights, LayerAdapter, LowRankPart
from kernels.arrays import Floats
from kernels.cpu.adapters import TorchAdapters, pack
from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import CpuProfile
from kernels.delta import StateRows
from kernels.host import StepRows
from kernels.reference_adapters import add_low_rank
from tests.support.tiny_adapters import merge, random_adapter
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import TinyFolder

TOLERANCE = 5e-4
LENGTHS = (1, 5, 9, 3)


def load(tiny_folder: TinyFolder, family: TinyFamily) -> Transformer:
    ops = CpuOps(CpuProfile(torch.float32, threads=2, products="plain", min_rows=1, probe_us={}))
    checkpoint = open_checkpoint(tiny_folder(family))
    model = load_model(checkpoint, ops, checkpoint.config.max_position)
    assert isinstance(model, Transformer)
    return model


def logits(model: TorchModel, rows: dict[int, int | None]) -> list[Floats]:
    """Logits of prompts by their index among LENGTHS, each with the adapter in a slot."""
    lens = np.array([LENGTHS[index] for index in rows])
    tokens = np.concatenate([np.arange(LENGTHS[index]) * 7 % 90 + 3 + index for index in rows])
    places = np.arange(len(rows))
    saves = np.zeros((0, 3), np.int64)
    states = None
    if model.config.linear is not None:
        states = StateRows(model.allocate_states(len(rows)), places, np.zeros_like(places), saves)
    slots = np.array([NO_ADAPTER if slot is None else slot for slot in rows.values()])
    adapters = None if (slots == NO_ADAPTER).all() else slots
    step = StepRows(places[:, None], lens, lens, states, adapters=adapters)
    hidden = model.forward(tokens, step, model.allocate_kv(len(rows)))
    return np.split(model.logits(hidden), lens.cumsum()[:-1])


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gemma4", "qwen3_5", "olmoe", "deepseek_v2", "olmo2"])
def test_as_with_the_adapter_merged(tiny_folder: TinyFolder, family: TinyFamily) -> None:
    model, merged = load(tiny_folder, family), load(tiny_folder, family)
    adapter = random_adapter(model.adapted_sizes, seed=1)
    assert adapter.parameters
    host = TorchModel(model)
    host.allocate_adapters(2)
    host.put_adapter(1, host.pack_adapter(adapter))
    merge(merged, adapter)
    (base,), (actual,), (expected,) = (
        logits(host, {2: None}),
        logits(host, {2: 1}),
        logits(TorchModel(merged), {2: None}),
    )
    assert np.abs(base - expected).max() > 0.1
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_rows_of_any_adapters(tiny_folder: TinyFolder) -> None:
    model = load(tiny_folder, "llama")
    host = TorchModel(model)
    host.allocate_adapters(3)
    changed: tuple[tuple[AdaptedProduct, ...], ...] = (("output",), ("qkv", "down"))
    for number, rank in enumerate((8, 3)):
        adapter = random_adapter(model.adapted_sizes, number, rank, changed[number])
        host.put_adapter(number, host.pack_adapter(adapter))
    rows: dict[int, int | None] = {0: 1, 1: None, 2: 0, 3: 1}
    for together, (index, slot) in zip(logits(host, rows), rows.items(), strict=True):
        (alone,) = logits(host, {index: slot})
        np.testing.assert_allclose(together, alone, atol=1e-5, rtol=1e-5)
    base = logits(host, dict.fromkeys(rows))
    assert np.array_equal(logits(host, rows)[1], base[1]), "of a row without one"
    host.put_adapter(1, None)
    with pytest.raises(KeyError):
        logits(host, {0: 1})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_with_adapters(dtype: torch.dtype) -> None:
    random = np.random.default_rng(0)

    def part(rank: int, outputs: int, first: int) -> LowRankPart:
        down, up = random.standard_normal((rank, 24)), random.standard_normal((outputs, rank))
        return LowRankPart(down.astype(np.float32), up.astype(np.float32), first)

    parts = {2: (part(4, 10, 0), part(2, 6, 14)), 5: (part(8, 20, 0),)}
    x, y = (torch.from_numpy(random.standard_normal((7, width))).to(dtype) for width in (24, 20))
    slots = np.array([NO_ADAPTER, 5, 2, 5])
    packed = {slot: pack(AdapterWeights([LayerAdapter(output=of_slot)])) for slot, of_slot in parts.items()}
    adapters = TorchAdapters(packed, slots, np.array([1, 2, 3, 1]))
    expected = add_low_rank(y, x, parts, [-1, 5, 5, 2, 2, 2, 5])
    actual = adapters.add(0, "output", y.clone(), x)
    torch.testing.assert_close(actual, expected, atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=1e-2)
    assert torch.equal(adapters.add(0, "qkv", y.clone(), x), y)


def test_what_does_not_fit_is_refused(tiny_folder: TinyFolder) -> None:
    llama, olmoe = (load(tiny_folder, family) for family in ("llama", "olmoe"))
    sizes = llama.adapted_sizes
    adapter = random_adapter(sizes, seed=1)
    check_adapter(adapter, sizes)
    with pytest.raises(ValueError, match="an adapter of 1 layers, and the model has 2"):
        check_adapter(AdapterWeights(adapter.layers[:1]), sizes)
    with pytest.raises(ValueError, match="layer 0: the model has no gate_up product"):
        TorchModel(olmoe).pack_adapter(adapter)
    (part, *_) = adapter.layers[1].output
    for flawed in (
        replace(part, first=1),
        replace(part, down=part.down[:, 1:]),
        replace(part, up=part.up[:, 1:]),
    ):
        layers = [adapter.layers[0], replace(adapter.layers[1], output=(flawed,))]
        with pytest.raises(ValueError, match="layer 1: output has"):
            check_adapter(AdapterWeights(layers), sizes)
    layers = [adapter.layers[0], replace(adapter.layers[1], output=(part, part))]
    with pytest.raises(ValueError, match="layer 1: output has"):
        check_adapter(AdapterWeights(layers), sizes)
