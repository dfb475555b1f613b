"""Models with adapters on the native CPU path: as close to transformers with merged weights as without, and to the bit
the same for a sequence in any batch."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from transformers import PreTrainedModel

from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.host_model import HostModel
from engine.models.loader import load_model
from engine.models.native_model import NativeModel
from kernels.adapters import NO_ADAPTER, AdapterWeights, LayerAdapter, LowRankPart
from kernels.arrays import Array, Ints, int_array
from kernels.cpu.native import NativeForward
from kernels.cpu.native.library import load
from kernels.cpu.native.staged import StagedForward
from kernels.cpu.native_ops import NativeOps
from kernels.exchange import tensor_of
from kernels.host import StepRows
from kernels.layout import BLOCK_TOKENS
from tests.engine.execution.harness import forward_logits, prompt
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import reference_model

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

SLOTS = 64
SINGLE_CALL: tuple[TinyFamily, ...] = ("llama", "qwen2", "qwen3_moe")
STAGED: tuple[TinyFamily, ...] = ("olmo2", "gemma2", "gemma4", "gemma4_shared", "gpt_oss", "granite", "qwen3_next")

UNSTEADY: tuple[TinyFamily, ...] = ("qwen3_moe", "qwen3_next")

PRODUCTS = {
    "self_attn.q_proj": "qkv",
    "self_attn.k_proj": "qkv",
    "self_attn.v_proj": "qkv",
    "self_attn.o_proj": "output",
    "mlp.gate_proj": "gate_up",
    "mlp.up_proj": "gate_up",
    "mlp.down_proj": "down",
}


def load_native(folder: Path) -> NativeModel:
    checkpoint = open_checkpoint(folder)
    model = load_model(checkpoint, NativeOps(2), checkpoint.config.max_position)
    assert isinstance(model, NativeModel)
    model.allocate_adapters(SLOTS)
    return model


@cache
def loaded(folder: Path) -> NativeModel:
    """With an adapter in each slot."""
    model = load_native(folder)
    for slot in range(SLOTS):
        model.put_adapter(slot, model.pack_adapter(adapter_of(reference_model(folder), slot)))
    return model


def adapter_of(reference: PreTrainedModel, seed: int, *, merge: bool = False) -> AdapterWeights:
    """An adapter of all the linears of a model that an adapter may change. `merge`: add it to the model's weights."""
    generator = torch.Generator().manual_seed(seed)
    layers: Sequence[nn.Module] = reference.get_decoder().layers
    return AdapterWeights([_layer_adapter(layer, 2 + seed % 15, generator, merge) for layer in layers])


def _layer_adapter(layer: nn.Module, rank: int, generator: torch.Generator, merge: bool) -> LayerAdapter:
    parts: dict[str, list[LowRankPart]] = {product: [] for product in PRODUCTS.values()}
    firsts = dict.fromkeys(parts, 0)
    modules = dict(layer.named_modules())
    for name, product in PRODUCTS.items():
        linear = modules.get(name)
        if not isinstance(linear, nn.Linear):
            continue
        outputs, inputs = linear.weight.shape
        outputs = _queries(layer, name, outputs)
        down = torch.randn((rank, inputs), generator=generator).bfloat16().float() / inputs**0.5
        up = torch.randn((outputs, rank), generator=generator).bfloat16().float() / 4
        parts[product].append(LowRankPart(down.numpy(), up.numpy(), firsts[product]))
        firsts[product] += outputs
        if merge:
            with torch.no_grad():
                _rows(layer, name, linear.weight)[:] += up @ down
    return LayerAdapter(**{product: tuple(own) for product, own in parts.items()})


def _queries(layer: nn.Module, name: str, outputs: int) -> int:
    """Outputs without the gates of gated attention, which q_proj has next to each head's queries."""
    return outputs // 2 if _gated(layer, name) else outputs


def _gated(layer: nn.Module, name: str) -> bool:
    return name == "self_attn.q_proj" and "Qwen3Next" in type(layer).__name__


def _rows(layer: nn.Module, name: str, weight: Tensor) -> Tensor:
    if not _gated(layer, name):
        return weight
    dim = layer.self_attn.head_dim
    heads = torch.arange(len(weight)).view(-1, 2, dim)[:, 0].flatten()
    return _Indexed(weight, heads)  # type: ignore[return-value]


class _Indexed:
    """Some rows of a weight."""

    def __init__(self, weight: Tensor, rows: Tensor) -> None:
        self._weight, self._rows = weight, rows

    def __getitem__(self, _: slice) -> Tensor:
        return self._weight[self._rows]

    def __setitem__(self, _: slice, numbers: Tensor) -> None:
        self._weight[self._rows] = numbers


class OneAdapter:
    """A model of which every row has the adapter in a slot."""

    def __init__(self, model: NativeModel, slot: int) -> None:
        self._model, self._slot = model, slot

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def forward(self, token_ids: Ints, rows: StepRows, kv: Array, wanted: Ints | None = None) -> Array:
        rows = replace(rows, adapters=np.full(len(rows.query_lens), self._slot, np.int64))
        return self._model.forward(token_ids, rows, kv, wanted)


def logits_of(model: NativeModel, slot: int, chunk_tokens: int = 512) -> Tensor:
    adapted: HostModel = OneAdapter(model, slot)  # type: ignore[assignment]
    return forward_logits(adapted, prompt(40), chunk_tokens)


@pytest.mark.parametrize("family", [*SINGLE_CALL, *STAGED])
def test_it_is_close_to_merged_weights(family: TinyFamily, tiny_folders: dict[str, Path]) -> None:
    folder = tiny_folders[family]
    reference, model = reference_model(folder), load_native(folder)
    tokens = torch.tensor([prompt(40)])
    with torch.no_grad():
        base = reference(tokens).logits[0]
    model.put_adapter(3, model.pack_adapter(adapter_of(reference, 3, merge=True)))
    with torch.no_grad():
        expected = reference(tokens).logits[0]
    actual = logits_of(model, 3)
    similarity = cosine_similarity(actual, expected)
    # Rounding may choose another expert, and a recurrent state carries it on.
    assert similarity.median() > (0.99 if family in UNSTEADY else 0.999)
    assert similarity.median() > cosine_similarity(actual, base).median() + 0.01, "it changes the model"
    assert torch.equal(logits_of(model, 3, 7), actual), "chunks"
    assert torch.equal(logits_of(model, NO_ADAPTER), forward_logits(model, prompt(40), 512))


@pytest.mark.parametrize("family", SINGLE_CALL)
def test_the_pass_in_stages_gives_the_bits_of_the_single_call(
    family: TinyFamily, tiny_folders: dict[str, Path]
) -> None:
    model = loaded(tiny_folders[family])
    assert isinstance(model._forward, NativeForward)
    expected = logits_of(model, 5)
    single = model._forward
    try:
        model._forward = StagedForward(model._shape, model._weights)
        model._forward.adapters = model._adapters
        assert torch.equal(logits_of(model, 5), expected)
    finally:
        model._forward = single


class Batch:
    """Sequences of a model, each with the adapter of a slot, on KV of their own."""

    BLOCKS = 6

    def __init__(self, model: NativeModel, tokens: Mapping[int, Sequence[int]], slots: Mapping[int, int]) -> None:
        self._model, self._tokens, self._slots = model, tokens, slots
        self._kv = model.allocate_kv(self.BLOCKS * (max(tokens) + 1))
        self._computed = dict.fromkeys(tokens, 0)
        self.hidden: dict[int, list[Tensor]] = {row: [] for row in tokens}

    def step(self, takes: Mapping[int, int], wanted: int | None = None) -> None:
        """Compute `takes` more tokens of some sequences; the last `wanted` hidden states of each, or all."""
        ids = [self._tokens[row][self._computed[row] :][:count] for row, count in takes.items()]
        for row, count in takes.items():
            self._computed[row] += count
        rows = StepRows(
            int_array([range(self.BLOCKS * row, self.BLOCKS * (row + 1)) for row in takes]),
            int_array(list(takes.values())),
            int_array([self._computed[row] for row in takes]),
            adapters=int_array([self._slots[row] for row in takes]),
        )
        ends = rows.query_lens.cumsum()
        last = None if wanted is None else np.concatenate([np.arange(end - wanted, end) for end in ends])
        hidden = tensor_of(self._model.forward(int_array(np.concatenate(ids)), rows, self._kv, last))
        counts = list(takes.values()) if wanted is None else [wanted] * len(takes)
        for row, part in zip(takes, hidden.split(counts), strict=True):
            self.hidden[row].append(part)


@pytest.mark.parametrize(("family", "adapters"), [("llama", 20), ("llama", SLOTS), ("gemma2", 20), ("gpt_oss", 20)])
def test_a_sequence_is_the_same_in_any_batch(family: TinyFamily, adapters: int, tiny_folders: dict[str, Path]) -> None:
    """Rows with many adapters, with the same one, and with none; prompts and decodes; only the last token wanted."""
    model = loaded(tiny_folders[family])
    slots = dict(enumerate([*range(adapters), NO_ADAPTER, 4, 4, NO_ADAPTER]))
    tokens = {row: prompt(BLOCK_TOKENS + 5, row) for row in slots}
    batch = Batch(model, tokens, slots)
    takes = {row: 1 + row % 13 for row in slots}
    batch.step(takes, wanted=1)
    batch.step(dict.fromkeys(list(slots)[::-1], 1), wanted=1)
    batch.step({row: 1 + 5 * (row in (4, adapters)) for row in slots}, wanted=1)
    for row, slot in slots.items():
        alone = Batch(model, {row: tokens[row]}, {row: slot})
        count = takes[row] + 2 + 5 * (row in (4, adapters))
        alone.step({row: count})
        places = [takes[row] - 1, takes[row], count - 1]
        assert torch.equal(torch.cat(batch.hidden[row]), alone.hidden[row][0][places])


def test_adapters_are_packed_while_another_thread_computes(tiny_folders: dict[str, Path]) -> None:
    model = loaded(tiny_folders["llama"])
    expected = logits_of(model, 2)
    weights = adapter_of(reference_model(tiny_folders["llama"]), 2)
    with ThreadPoolExecutor(1) as pool:
        packing = pool.submit(lambda: [model.pack_adapter(weights) for _ in range(200)])
        while not packing.done():
            assert torch.equal(logits_of(model, 2), expected)
    model.put_adapter(2, packing.result()[-1])
    assert torch.equal(logits_of(model, 2), expected)


def test_an_adapter_of_another_model_is_not_packed(tiny_folders: dict[str, Path]) -> None:
    weights = adapter_of(reference_model(tiny_folders["llama"]), 0)
    with pytest.raises(AssertionError, match="an adapter of 1 layers for 2"):
        load_native(tiny_folders["llama"]).pack_adapter(AdapterWeights(weights.layers[1:]))


def test_an_emptied_slot_is_refused(tiny_folders: dict[str, Path]) -> None:
    model = load_native(tiny_folders["llama"])
    model.put_adapter(0, model.pack_adapter(adapter_of(reference_model(tiny_folders["llama"]), 0)))
    first = logits_of(model, 0)
    model.put_adapter(0, model.pack_adapter(adapter_of(reference_model(tiny_folders["llama"]), 1)))
    assert not torch.equal(logits_of(model, 0), first), "another adapter in the same slot"
    model.put_adapter(0, None)
    with pytest.raises(AssertionError, match="no adapter in slot 0"):
        logits_of(model, 0)
