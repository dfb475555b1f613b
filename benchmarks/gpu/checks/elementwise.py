"""The kernels around attention: norms, gate, embedding, rotation and storing, moves of blocks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.checks import TOLERANCE, poisoned_memory, share_that_differs, worst_row_error
from benchmarks.gpu.stage import Stage
from kernels import reference
from kernels.layout import BLOCK_TOKENS
from kernels.ops import CheckedRows, HeadNorms, RopeRows
from kernels.triton import activation, blocks, embedding, norms, rotary
from kernels.weights import KVScales

_EPS = 1e-5
_POSITIONS = 1000
"""Of which there are rotary factors."""
_SCALES = KVScales(key=0.25, value=0.5)
_SCALAR = 0.625
_Gate = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class _Rotation:
    """Heads, their dimension, how much of it rotates, and whether heads are normed, and values, too."""

    queries: int
    kv_heads: int
    dim: int
    rotated: int
    normed: bool = False
    value_normed: bool = False

    def __str__(self) -> str:
        heads = f"{self.queries}/{self.kv_heads} heads of {self.dim}, {self.rotated} rotated"
        return heads + ", normed" * self.normed + " with values" * self.value_normed


_ROTATIONS = (
    _Rotation(32, 8, 128, 128),
    _Rotation(32, 8, 128, 128, True),
    _Rotation(9, 3, 64, 32),
    _Rotation(4, 4, 96, 96),
    _Rotation(8, 4, 256, 256, True, True),
    _Rotation(16, 2, 512, 512, True, True),
)
_WIDTHS = (576, 2048, 4096)


def run(stage: Stage) -> None:
    rows = 3 if stage.scale.chunk < 100 else 300
    for dtype in stage.scale.dtypes:
        named = str(dtype).removeprefix("torch.")
        for width in _WIDTHS[:1] if rows == 3 else _WIDTHS:
            for name, check in _ROW_CHECKS.items():
                title = f"{name} of {width}, {named}"
                stage.attempt(title, partial(check, stage, title, rows, width, dtype))
        for case in _ROTATIONS:
            title = f"rotate and store, {case}, {named}"
            stage.attempt(title, partial(_check_rotation, stage, title, case, rows, dtype, None))
            title = f"rotate queries, {case}, {named}"
            stage.attempt(title, partial(_check_queries, stage, title, case, rows, dtype))
    if stage.scale.fp8_stores:
        title = f"rotate and store in fp8, {_ROTATIONS[0]}"
        stage.attempt(
            title, partial(_check_rotation, stage, title, _ROTATIONS[0], rows, stage.scale.dtypes[0], _SCALES)
        )
    for kv_dtype in (stage.scale.dtypes[0], torch.float8_e4m3fn):
        named = str(kv_dtype).removeprefix("torch.")
        for title, layers, block in (
            (f"moves of blocks, {named}", 3, (BLOCK_TOKENS, 2, 2, 64)),
            (f"moves of mixed blocks, {named}", 1, (BLOCK_TOKENS * 2 * (2 * 64 + 80),)),
        ):
            stage.attempt(title, partial(_check_blocks, stage, title, kv_dtype, layers, block))


def _random(stage: Stage, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=stage.generator, device=stage.device).to(dtype)


def _check_rms_norm(stage: Stage, title: str, rows: int, width: int, dtype: torch.dtype) -> None:
    x, weight = _random(stage, rows, width, dtype=dtype), _random(stage, width, dtype=dtype)
    with poisoned_memory():
        output = norms.rms_norm(x, weight, _EPS)
    stage.checked(
        title, worst_row_error(output, reference.rms_norm(x.double(), weight.double(), _EPS)), TOLERANCE[dtype]
    )


def _check_add_rms_norm(stage: Stage, title: str, rows: int, width: int, dtype: torch.dtype) -> None:
    x, residual = (_random(stage, rows, width, dtype=dtype) for _ in range(2))
    weight = _random(stage, width, dtype=dtype)
    total = residual.double() + x.double()
    with poisoned_memory():
        normed, kept = norms.add_rms_norm(x, residual, weight, _EPS)
    stage.checked(title, worst_row_error(normed, reference.rms_norm(total, weight.double(), _EPS)), TOLERANCE[dtype])
    stage.checked(f"{title}, the sum", worst_row_error(kept, total), TOLERANCE[dtype])


def _check_branch(stage: Stage, title: str, rows: int, width: int, dtype: torch.dtype) -> None:
    """A branch with a norm, in a layer with a scalar."""
    branch, residual = (_random(stage, rows, width, dtype=dtype) for _ in range(2))
    own, following = (_random(stage, width, dtype=dtype) for _ in range(2))
    wide = [tensor.double() for tensor in (branch, own, residual, following)]
    total = (wide[2] + reference.rms_norm(wide[0], wide[1], _EPS)) * _SCALAR
    with poisoned_memory():
        normed, kept = norms.add_branch(branch, own, residual, following, _EPS, _SCALAR)
    stage.checked(title, worst_row_error(normed, reference.rms_norm(total, wide[3], _EPS)), TOLERANCE[dtype])
    stage.checked(f"{title}, the sum", worst_row_error(kept, total), TOLERANCE[dtype])


def _check_flags(stage: Stage, title: str, rows: int, width: int, dtype: torch.dtype) -> None:
    """Every third row has a number that is not finite, in the first column, the last one or between."""
    branch, residual = (_random(stage, rows, width, dtype=dtype) for _ in range(2))
    weight = _random(stage, width, dtype=dtype)
    for row in range(0, rows, 3):
        branch[row, row * (width // 2) % width - row // 3 % 2] = (math.nan, math.inf, -math.inf)[row % 9 // 3]
    with poisoned_memory():
        into = CheckedRows.empty(rows, width, dtype, stage.device)
        normed, _ = norms.add_branch(branch, None, residual.clone(), weight, _EPS, into=into)
    plain, _ = norms.add_branch(branch, None, residual, weight, _EPS)
    stage.checked(f"{title}, rows", share_that_differs(normed.nan_to_num(), plain.nan_to_num()), 0.0)
    stage.checked(title, share_that_differs(into.finite, plain.isfinite().all(dim=-1).to(torch.int8)), 0.0)


def _check_gate(
    kernel: _Gate, meaning: _Gate, stage: Stage, title: str, rows: int, width: int, dtype: torch.dtype
) -> None:
    """Of numbers large enough that some are clamped."""
    gate_up = 5 * _random(stage, rows, 2 * width, dtype=dtype)
    with poisoned_memory():
        output = kernel(gate_up)
    stage.checked(title, worst_row_error(output, meaning(gate_up.double())), TOLERANCE[dtype])


def _check_embed(stage: Stage, title: str, rows: int, width: int, dtype: torch.dtype) -> None:
    table = _random(stage, 1000, width, dtype=dtype)
    ids = torch.randint(0, 1000, (rows,), generator=stage.generator, device=stage.device)
    with poisoned_memory():
        output = embedding.embed(table, ids)
    stage.checked(title, share_that_differs(output, table[ids]), 0.0, "must be the same")


_ROW_CHECKS: dict[str, Callable[[Stage, str, int, int, torch.dtype], None]] = {
    "norm": _check_rms_norm,
    "sum and norm": _check_add_rms_norm,
    "finite rows": _check_flags,
    "normed branch": _check_branch,
    "gate": partial(_check_gate, activation.silu_mul, reference.silu_mul),
    "GELU gate": partial(_check_gate, activation.gelu_mul, reference.gelu_mul),
    "clamped gate": partial(_check_gate, activation.clamped_swiglu_mul, reference.clamped_swiglu_mul),
    "embedding": _check_embed,
}


def _rotated(
    stage: Stage, case: _Rotation, tokens: int, dtype: torch.dtype
) -> tuple[Tensor, HeadNorms | None, RopeRows]:
    """qkv, norms and factors."""
    qkv = _random(stage, tokens, case.queries + 2 * case.kv_heads, case.dim, dtype=dtype)
    angles = 3 * _random(stage, _POSITIONS, case.rotated // 2, dtype=torch.float32)
    positions = torch.arange(tokens, device=stage.device) * 7 % _POSITIONS
    query, key, value = _random(stage, 3, case.dim, dtype=dtype)
    head_norms = HeadNorms(query, key, _EPS, value=value if case.value_normed else None) if case.normed else None
    return qkv, head_norms, RopeRows(angles.cos().to(dtype), angles.sin().to(dtype), positions)


def _wide(head_norms: HeadNorms | None, rope: RopeRows) -> tuple[HeadNorms | None, RopeRows]:
    """These in float64."""
    wide = RopeRows(rope.cos.double(), rope.sin.double(), rope.positions)
    if head_norms is None:
        return None, wide
    value = None if head_norms.value is None else head_norms.value.double()
    return HeadNorms(head_norms.query.double(), head_norms.key.double(), head_norms.eps, value=value), wide


def _check_queries(stage: Stage, title: str, case: _Rotation, tokens: int, dtype: torch.dtype) -> None:
    """Queries of a layer without keys and values: as the reference has them, and as with keys and values."""
    qkv, head_norms, rope = _rotated(stage, case, tokens, dtype)
    query = qkv[:, : case.queries].contiguous()
    with poisoned_memory():
        rotated = rotary.rotate(query, head_norms, rope)
    expected = reference.rotate(query.double(), *_wide(head_norms, rope))
    stage.checked(title, worst_row_error(rotated, expected), TOLERANCE[dtype])
    kv = torch.zeros((1, BLOCK_TOKENS, 2, case.kv_heads, case.dim), dtype=dtype, device=stage.device)
    nowhere = torch.full((tokens,), -1, device=stage.device)
    stored = rotary.rotate_and_store(qkv, head_norms, rope, kv, nowhere)
    stage.checked(f"{title}: with keys and values", share_that_differs(rotated, stored), 0.0, "must be the same")


def _check_rotation(
    stage: Stage, title: str, case: _Rotation, tokens: int, dtype: torch.dtype, scales: KVScales | None
) -> None:
    device = stage.device
    qkv, head_norms, rope = _rotated(stage, case, tokens, dtype)
    num_blocks = tokens // BLOCK_TOKENS + 3
    slots = torch.randperm(num_blocks * BLOCK_TOKENS, generator=stage.generator, device=device)[:tokens]
    slots[tokens // 2] = -1
    shape = (num_blocks, BLOCK_TOKENS, 2, case.kv_heads, case.dim)
    # In each block the layer lies between others.
    size = math.prod(shape[1:])
    pool = torch.full((num_blocks, 3 * size), math.nan, device=device).to(torch.float8_e4m3fn if scales else dtype)
    stored = pool[:, size : 2 * size].view(shape)
    with poisoned_memory():
        query = rotary.rotate_and_store(qkv, head_norms, rope, stored, slots, scales)
    kept = torch.zeros(shape, dtype=torch.float64, device=device)
    expected = reference.rotate_and_store(qkv.double(), *_wide(head_norms, rope), kept, slots)
    written = slots[slots >= 0]
    actual = stored.float().flatten(0, 1)[written].double()
    tolerance = TOLERANCE[dtype]
    if scales is not None:
        actual *= torch.tensor([scales.key, scales.value], device=device, dtype=torch.float64)[:, None, None]
        tolerance = 5e-2  # three bits of mantissa
    stage.checked(title, worst_row_error(query, expected), TOLERANCE[dtype])
    stage.checked(f"{title}, what is kept", worst_row_error(actual, kept.flatten(0, 1)[written]), tolerance)
    untouched = torch.ones(num_blocks * BLOCK_TOKENS, dtype=torch.bool, device=device)
    untouched[written] = False
    strays = stored.float().flatten(0, 1)[untouched].isfinite().double().mean()
    stage.checked(f"{title}, unassigned slots", float(strays), 0.0, "must be unchanged")
    others = torch.cat((pool[:, :size], pool[:, 2 * size :])).float()
    stage.checked(f"{title}, other layers", float(others.isfinite().double().mean()), 0.0, "must be unchanged")


def _check_blocks(stage: Stage, title: str, dtype: torch.dtype, layers: int, shape: tuple[int, ...]) -> None:
    count = 40
    kv = _random(stage, layers, count, *shape, dtype=dtype)
    order = torch.randperm(count, generator=stage.generator, device=stage.device)
    sources, targets, cleared = order[:7], order[7:14], order[14:17]
    # Plain torch has no indexing of fp8; its bytes are moved in its place.
    expected = kv.clone().view(torch.uint8)
    reference.copy_blocks(expected, sources, targets)
    reference.clear_blocks(expected, cleared)
    blocks.copy_blocks(kv, sources, targets)
    blocks.clear_blocks(kv, cleared)
    stage.checked(f"{title}: copied and cleared", share_that_differs(kv.view(torch.uint8), expected), 0.0)
    staging = torch.empty((7, layers, *shape), dtype=dtype, device=stage.device)
    blocks.gather_blocks(kv, sources, staging)
    gathered = expected[:, sources].transpose(0, 1)
    stage.checked(f"{title}: gathered", share_that_differs(staging.view(torch.uint8), gathered), 0.0)
    blocks.scatter_blocks(staging, kv, order[20:27])
    scattered = share_that_differs(kv.view(torch.uint8)[:, order[20:27]], expected[:, sources])
    stage.checked(f"{title}: scattered", scattered, 0.0)
