"""Computations of the self-test of a GPU for parts that not every model has: mixtures of experts, attention over
latents, gated delta nets, and adapters. Shapes are small: a kernel is compiled again for a model's own."""

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from kernels.adapter_sizes import ProductSize
from kernels.adapters import NO_ADAPTER, AdapterWeights, LayerAdapter, LowRankPart
from kernels.delta import DeltaShape
from kernels.device_states import DeviceStates
from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata, DeltaWeights, ExpertWeights, LatentWeights, Linear, Ops, RopeRows
from kernels.step import ROW_WORDS, SAVE_WORDS, Row, RowSave, row_words
from kernels.weights import DeltaVectors, ExpertStacker, HeadStacker, MlpWeights, ModelPart

Results = Mapping[str, Tensor]
"""By op, rows of numbers."""
Random = Callable[..., Tensor]
"""Random numbers of a shape, times `scale`, in the dtype of the ops and on their device."""
Computation = Callable[[Ops, Random], Results]

_EPS = 1e-5

_EXPERTS, _PER_TOKEN, _HIDDEN, _INNER = 4, 2, 128, 64
_FEW_TOKENS, _MANY_TOKENS = 3, 70
"""One for each tile of assignments."""

_RANKS, _ADAPTED_INPUTS, _ADAPTED_TOKENS = (16, 5), 600, 260
"""Over two splits of the inputs."""
_COPY_SECONDS = 10.0
"""Maximum time of the copies of adapters."""

_HEADS, _ROTATED, _RANK, _OTHERS, _VALUES = 16, 32, 128, 64, 64
"""Query heads; dimensions that are rotated, of a latent, of a query that are not rotated, and of a head's value."""
_QUERIES, _CONTEXTS = (1, 33), (600, 48)
"""A decode row over two splits, and a chunk."""

_DELTA = DeltaShape(key_heads=2, value_heads=4, key_dim=32, value_dim=32, taps=4)
_ROWS = (Row(0, 70, 1, 0, 1, 0, 0), Row(1, 9, 4, 3, 0, 1, 1), Row(2, 0, 20, 0, 1, 5, 2))
"""A decode row, a row with drafts and a prompt."""
_SETTLED = (1, 2, 20)
_DRAFTED_TOKENS = 5


def _experts(ops: Ops, random: Random) -> Results:
    def linear(outputs: int, inputs: int) -> Tensor:
        return random(outputs, inputs, scale=inputs**-0.5)

    experts = [
        MlpWeights(ops.pack_linear(linear(2 * _INNER, _HIDDEN), None), ops.pack_linear(linear(_HIDDEN, _INNER), None))
        for _ in range(_EXPERTS)
    ]
    router = ops.pack_linear(linear(_EXPERTS, _HIDDEN), None)
    stacked = ops.stack_experts(experts) if isinstance(ops, ExpertStacker) else experts
    weights: ExpertWeights = ExpertWeights(router, stacked, _PER_TOKEN, renormalise=True)
    tokens_of = torch.zeros(_EXPERTS, dtype=torch.int64, device=ops.device)

    def mixed(tokens: int) -> Tensor:
        slots = torch.arange(tokens, device=ops.device)
        return ops.mixture(weights, random(tokens, _HIDDEN), slots, ops.silu_mul, tokens_of)

    few, many = mixed(_FEW_TOKENS), mixed(_MANY_TOKENS)
    return {"a mixture of few tokens": few, "a mixture": many, "tokens of experts": tokens_of[None]}


def _latents(ops: Ops, random: Random) -> Results:
    def heads(outputs: int, inputs: int) -> Sequence[Linear]:
        linears = [ops.pack_linear(random(outputs, inputs, scale=inputs**-0.5), None) for _ in range(_HEADS)]
        return ops.stack_heads(linears) if isinstance(ops, HeadStacker) else linears

    unused = ops.pack_linear(random(1, 1), None)
    weights: LatentWeights = LatentWeights(
        query_down=None,
        query_norm=None,
        query_up=unused,
        down=unused,
        norm=random(_RANK),
        of_queries=heads(_RANK, _OTHERS),
        of_values=heads(_VALUES, _RANK),
        rotated=_ROTATED,
        value_dim=_VALUES,
        eps=_EPS,
    )
    blocks = [-(-context // BLOCK_TOKENS) for context in _CONTEXTS]
    tables = torch.zeros(2, max(blocks), dtype=torch.int64)
    tables[0, : blocks[0]] = torch.arange(blocks[0]).flip(0)
    tables[1, : blocks[1]] = torch.arange(blocks[0], sum(blocks))
    plan = ops.plan_attention(AttentionMetadata(tables.to(ops.device), _QUERIES, _CONTEXTS))
    kv = random(sum(blocks), BLOCK_TOKENS, 1, 1, _ROTATED + _RANK)
    tokens = sum(_QUERIES)
    angles = random(tokens, _ROTATED // 2)
    rope = RopeRows(angles.cos(), angles.sin(), torch.arange(tokens, device=ops.device))
    query, down = random(tokens, _HEADS, _ROTATED + _OTHERS), random(tokens, _RANK + _ROTATED)
    absorbed = ops.latent_queries(weights, query, down, rope, kv, plan.slot_mapping)
    means = ops.attend_latents(absorbed, kv, plan, _ROTATED, (_ROTATED + _OTHERS) ** -0.5)
    return {
        "queries over latents": absorbed.flatten(1),
        "stored latents": kv.flatten(1),
        "attention over latents": means.flatten(1),
        "values of latents": ops.latent_values(weights, means),
    }


def _delta_nets(ops: Ops, random: Random) -> Results:
    def wide(*shape: int) -> Tensor:
        return random(*shape).float()

    def words(numbers: list[int], width: int) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=ops.device).view(-1, width)

    shape, heads = _DELTA, _DELTA.value_heads
    vectors = DeltaVectors(
        wide(shape.taps, shape.channels), -torch.exp(wide(heads) - 1), wide(heads), 1 + wide(shape.value_dim) / 5
    )
    weights: DeltaWeights = DeltaWeights(shape, ops.pack_linear(random(1, 1), None), vectors)
    owners = [index for index, row in enumerate(_ROWS) for _ in range(row.tokens)]
    memory = wide(len(_ROWS), 1, shape.words)
    states = DeviceStates(
        memory,
        words(row_words(_ROWS), ROW_WORDS),
        words(owners, 1).flatten(),
        words([*RowSave(0, 0)], SAVE_WORDS),
        len(owners),
    )
    mixed, gates = random(len(owners), shape.channels + shape.values), random(len(owners), 2 * heads)
    output = ops.gated_delta(mixed, gates, weights, 0, states, _EPS)
    settled = torch.tensor(_SETTLED, dtype=torch.int32, device=ops.device)
    ops.settle_delta(mixed[:_DRAFTED_TOKENS], gates[:_DRAFTED_TOKENS], weights, 0, states, settled)
    gated = ops.sigmoid_mul(output, random(*output.shape))
    return {"a delta net": output, "states of a delta net": memory.flatten(1), "a sigmoid gate": gated}


def _adapters(ops: Ops, random: Random) -> Results:
    """A product of three parts with adapters of two ranks, in tiles of few tokens and of many."""
    size = ProductSize((_HIDDEN, _INNER, _INNER), _ADAPTED_INPUTS)
    slots = ops.allocate_adapters([{"qkv": size}], len(_RANKS), max(_RANKS))
    for slot, rank in enumerate(_RANKS):
        parts, first = [], 0
        for outputs in size.parts:
            down, up = random(rank, size.inputs, scale=size.inputs**-0.5), random(outputs, rank, scale=rank**-0.5)
            parts.append(LowRankPart(down.float().cpu().numpy(), up.float().cpu().numpy(), first))
            first += outputs
        slots.put(slot, slots.pack(AdapterWeights([LayerAdapter(qkv=tuple(parts))])))
    until_s = time.monotonic() + _COPY_SECONDS
    while not all(map(slots.is_resident, range(len(_RANKS)))):
        if time.monotonic() > until_s:
            raise TimeoutError(f"adapters are not copied within {_COPY_SECONDS:g} s")

    def added(tokens: int) -> Tensor:
        rows = [Row(index % (len(_RANKS) + 1), 0, 1, 0, 1, index) for index in range(tokens)]
        words = torch.tensor(row_words(rows), dtype=torch.int32, device=ops.device).view(-1, ROW_WORDS)
        owners = torch.arange(tokens, dtype=torch.int32, device=ops.device)
        adapters = torch.tensor([NO_ADAPTER, *range(len(_RANKS))], dtype=torch.int32, device=ops.device)
        of_step = slots.of_step(words, owners, owners.long(), adapters)
        return of_step.add(0, "qkv", random(tokens, size.outputs), random(tokens, size.inputs))

    return {"adapters of few tokens": added(_FEW_TOKENS), "adapters": added(_ADAPTED_TOKENS)}


PARTS: Mapping[ModelPart, Computation] = {
    "experts": _experts,
    "latents": _latents,
    "delta nets": _delta_nets,
    "adapters": _adapters,
}
