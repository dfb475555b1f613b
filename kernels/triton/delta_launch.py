"""Launches of a gated delta net's kernels, for all rows of a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
from torch import Tensor

from kernels.delta import DeltaShape
from kernels.device_states import DeviceStates
from kernels.ops import DeltaWeights
from kernels.reference_delta import L2_EPS
from kernels.step import ROW_WORDS, SAVE_WORDS
from kernels.triton.delta import delta_inputs_kernel, delta_rule_kernel, gated_norm_kernel
from kernels.triton.tiles import require_contiguous, tile_above, warps_for

TOKEN_TILE = 8
"""Tokens of a program of the inputs."""
VALUE_TILE = 16
"""Columns of a memory in a program of the rule: each is independent of the others."""
NORM_TILE = 1024
"""Numbers of a program of the gated norm."""
KEPT_UNIT = 8
"""Channels that a program keeps are a multiple of it: whole vectors."""
_WARP_NUMBERS = 2048
"""Numbers of a memory that a warp holds in registers."""


@dataclass(frozen=True, slots=True)
class DeltaLaunch:
    """Compile-time arguments and warps of the kernels for one shape."""

    inputs: Mapping[str, int | float]
    rule: Mapping[str, int | float]
    norm: Mapping[str, int | float]


@lru_cache
def launch_of(shape: DeltaShape) -> DeltaLaunch:
    sizes: Mapping[str, int | float] = {
        "KEY_HEADS": shape.key_heads,
        "VALUE_HEADS": shape.value_heads,
        "KEY_DIM": shape.key_dim,
        "VALUE_DIM": shape.value_dim,
        "TAPS": shape.taps,
        "ROW": ROW_WORDS,
    }
    tile = tile_above(max(shape.key_dim, shape.value_dim))
    key_tile, value_tile = tile_above(shape.key_dim), tile_above(shape.value_dim)
    programs = shape.values // VALUE_TILE
    kept = triton.cdiv(triton.cdiv(shape.channels, programs), KEPT_UNIT) * KEPT_UNIT
    lines = max(1, NORM_TILE // value_tile)
    return DeltaLaunch(
        inputs={
            **sizes,
            "L2_EPS": L2_EPS,
            "TOKENS": TOKEN_TILE,
            "TILE": tile,
            "num_warps": warps_for(TOKEN_TILE * tile),
        },
        rule={
            **sizes,
            "TILED": shape.tiled,
            "SAVE": SAVE_WORDS,
            "KEY_TILE": key_tile,
            "VALUES": VALUE_TILE,
            "KEPT": kept,
            "KEPT_LINES": tile_above(shape.taps - 1),
            "KEPT_TILE": tile_above(kept),
            "num_warps": max(1, key_tile * VALUE_TILE // _WARP_NUMBERS),
        },
        norm={
            "HEADS": shape.value_heads,
            "DIM": shape.value_dim,
            "WIDTH": shape.channels + shape.values,
            "LINES": lines,
            "TILE": value_tile,
            "num_warps": warps_for(lines * value_tile),
        },
    )


def gated_delta(
    mixed: Tensor, gates: Tensor, weights: DeltaWeights, place: int, states: DeviceStates, eps: float
) -> Tensor:
    """`kernels.reference_delta.advance_rows`."""
    shape, tokens = weights.shape, mixed.shape[0]
    output = torch.empty((tokens, shape.values), dtype=mixed.dtype, device=mixed.device)
    if not tokens:
        return output
    read = _advance(mixed, gates, weights, states.memory[:, place], states, states.rows, None)
    launch = launch_of(shape).norm
    lines = tokens * shape.value_heads
    grid = (triton.cdiv(lines, launch["LINES"]),)
    gated_norm_kernel[grid](read, mixed, weights.vectors.norm, output, lines, eps, **launch)
    return output


def settle_delta(
    mixed: Tensor, gates: Tensor, weights: DeltaWeights, place: int, states: DeviceStates, settled: Tensor
) -> None:
    """`kernels.reference_delta.advance_rows` of rows with drafts, by their first `settled` tokens."""
    _advance(mixed, gates, weights, states.memory[:, place], states, states.rows, settled)


def _advance(
    mixed: Tensor,
    gates: Tensor,
    weights: DeltaWeights,
    memory: Tensor,
    states: DeviceStates,
    rows: Tensor,
    settled: Tensor | None,
) -> Tensor:
    """Advance the memories of a layer [slots, words]. Returns what they give for the queries, float32 [T, Hv Dv]."""
    require_contiguous(mixed, gates)
    shape, vectors, launch = weights.shape, weights.vectors, launch_of(weights.shape)
    tokens = mixed.shape[0]
    inputs = torch.empty((tokens, shape.channels), dtype=torch.float32, device=mixed.device)
    gating = torch.empty((tokens, 2 * shape.value_heads), dtype=torch.float32, device=mixed.device)
    read = torch.empty((tokens, shape.values), dtype=torch.float32, device=mixed.device)
    delta_inputs_kernel[triton.cdiv(tokens, TOKEN_TILE), 2 * shape.key_heads + shape.value_heads](
        mixed,
        gates,
        rows,
        states.token_rows,
        memory,
        vectors.convolution,
        vectors.decay_rate,
        vectors.step_bias,
        inputs,
        gating,
        tokens,
        memory.stride(0),
        enable_fp_fusion=False,
        **launch.inputs,
    )
    delta_rule_kernel[shape.value_dim // VALUE_TILE, shape.value_heads, rows.shape[0]](
        inputs,
        gating,
        mixed,
        rows,
        states.saves,
        settled,
        memory,
        read,
        memory.stride(0),
        enable_fp_fusion=False,
        **launch.rule,
    )
    return read
