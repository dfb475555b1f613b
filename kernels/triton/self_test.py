"""A self-test of a GPU: every op that a model of the Llama architecture uses computes there on random numbers, and is
compared with its definition, computed in float32 on the CPU; for other models the ops of each part that they have.

It fails on a device that the kernels do not fit, a driver or compiler that breaks one, and a processor that computes
wrongly. The shapes are those of a common model, so that the kernels which are compiled here are used afterwards.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata, Ops, RopeRows, SamplingColumns
from kernels.reference_ops import ReferenceOps
from kernels.triton.ops import TritonOps
from kernels.triton.self_test_parts import PARTS, Computation, Random, Results
from kernels.weights import ModelPart

TOLERANCE = 3e-2
"""Of the root of the squared errors over that of the squared numbers of a row: some roundings to bfloat16."""

_HIDDEN = 4096
_QUERY_HEADS, _KV_HEADS, _HEAD_DIM = 32, 8, 128
_VOCABULARY = 32_000
_QUERIES, _CONTEXTS = (1, 33), (300, 48)
"""Two rows: one that is decoded, over two splits of its context, and one of a prompt."""
_BLOCKS = sum(-(-context // BLOCK_TOKENS) for context in _CONTEXTS)


def failure_on(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> str | None:
    """The failure of the first op that is wrong on a device, or the error that one raises; None if all are right."""
    return _failure((_products, _norms, partial(_attention, dtype=dtype), _sampling), device, dtype)


def part_failure_on(part: ModelPart, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> str | None:
    """`failure_on` of the ops of a part that not every model has."""
    return _failure((PARTS[part],), device, dtype)


def _failure(computations: Sequence[Computation], device: torch.device, dtype: torch.dtype) -> str | None:
    try:
        results = _computed(computations, TritonOps(device, dtype), dtype)
    except Exception as error:  # of the driver, of Triton's compiler or launcher, of torch
        return f"{type(error).__name__}: {error}"
    expected = _computed(computations, ReferenceOps(torch.device("cpu"), torch.float32), dtype)
    for name, meant in expected.items():
        wrong = _worst_error(results[name], meant)
        if not wrong <= TOLERANCE:  # NaN is not
            return f"{name} is wrong by {wrong:.3g} of its value, where {TOLERANCE:g} are allowed"
    return None


def _computed(computations: Sequence[Computation], ops: Ops, rounded_to: torch.dtype) -> Results:
    """The results of each op on the same inputs, which are numbers of `rounded_to`."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=generator) * scale).to(rounded_to).to(ops.device, ops.dtype)

    with torch.inference_mode():
        results: dict[str, Tensor] = {}
        for compute in computations:
            results |= compute(ops, random)
        return {name: result.float().cpu() for name, result in results.items()}


def _products(ops: Ops, random: Random) -> Results:
    product = ops.pack_linear(random(512, 2048, scale=2048**-0.5), None)
    few, many = product(random(3, 2048)), product(random(17, 2048))
    return {"a product of few rows": few, "a product": many, "SwiGLU": ops.silu_mul(random(3, 2 * _HIDDEN))}


def _norms(ops: Ops, random: Random) -> Results:
    weight = random(_HIDDEN)
    normed, total = ops.add_rms_norm(random(3, _HIDDEN), random(3, _HIDDEN), weight, 1e-5)
    return {"a norm": ops.rms_norm(random(3, _HIDDEN), weight, 1e-5), "a norm of a sum": normed, "a sum": total}


def _attention(ops: Ops, random: Random, dtype: torch.dtype) -> Results:
    """Queries, keys and values of new tokens are rotated and stored, and all attend to what is there."""
    angles = random(sum(_QUERIES), _HEAD_DIM // 2)
    positions = torch.arange(len(angles), device=ops.device).flip(0)
    rope = RopeRows(angles.cos().to(dtype).to(ops.dtype), angles.sin().to(dtype).to(ops.dtype), positions)
    kv = ops.allocate_kv(1, _BLOCKS, _KV_HEADS, _HEAD_DIM)[0]
    kv.copy_(random(*kv.shape))
    heads = random(sum(_QUERIES), _QUERY_HEADS + 2 * _KV_HEADS, _HEAD_DIM)
    first = -(-_CONTEXTS[0] // BLOCK_TOKENS)
    tables = torch.zeros(2, first, dtype=torch.int64)
    tables[0] = torch.arange(first).flip(0)
    tables[1, : _BLOCKS - first] = torch.arange(first, _BLOCKS)
    metadata = AttentionMetadata(tables.to(ops.device), _QUERIES, _CONTEXTS)
    plan = ops.plan_attention(metadata)
    query = ops.rotate_and_store(heads, None, rope, kv, plan.slot_mapping)
    attended = ops.attend(query, kv, plan, None)
    return {"a rotation": query.flatten(1), "stored KV": kv.flatten(1), "attention": attended.flatten(1)}


def _sampling(ops: Ops, random: Random) -> Results:
    """A greedy row and a drawn one. Logits are far apart, so that no rounding decides."""
    logits = random(2, _VOCABULARY).float().round() + torch.arange(_VOCABULARY, device=ops.device) / _VOCABULARY / 2

    def column(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=ops.device)

    columns = SamplingColumns(
        inverse_temperature=column(1.0, 1.25),
        noise_scale=column(0.0, 1.0),
        top_k=column(_VOCABULARY, 50, dtype=torch.int64),
        top_p=column(1.0, 0.9),
        min_p=column(0.0, 0.0),
        keys=torch.tensor([[1, 2], [3, 4]], device=ops.device),
    )
    return {"a draw": functional.one_hot(ops.sample(logits, columns), _VOCABULARY)}


def _worst_error(actual: Tensor, expected: Tensor) -> float:
    """max over rows of ||actual - expected|| / ||expected||; NaN where there is one."""
    return float(((actual - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-30)).max())
