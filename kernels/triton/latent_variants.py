"""The shipped variants of the kernels of latent attention, as described in `kernels.triton.variants`.

DeepSeek-V2-Lite has 16 heads, GLM-4.7-Flash 20 and DeepSeek-V3 128, all over a latent of 512 and 64 rotated dimensions.
"""

from collections.abc import Iterator
from typing import Any

from kernels.triton.attention_tiles import FEW_QUERY_ROWS
from kernels.triton.attention_variants import ALIGNED, TYPES
from kernels.triton.by_head import by_head_kernel
from kernels.triton.capability import HOPPER
from kernels.triton.latent_attention import latent_decode, latent_extend, merge_latents
from kernels.triton.latent_store import latent_store_shape, latent_store_warps, rotate_and_store_latents_kernel
from kernels.triton.tuning import Launch
from kernels.triton.tuning_latents import LatentShape, latent_decode_launch, latent_extend_launch, latent_merge_launch
from kernels.triton.tuning_products import BY_HEAD_INPUTS, by_head_launch
from kernels.triton.variants import KernelVariant

_HEADS = (16, 20, 128)
_ROTATED, _RANK = 64, 512
_PRODUCTS = ((16, 512, 128), (16, 128, 512), (20, 512, 192), (20, 256, 512))
"""Heads, outputs and inputs of the products by head."""

_DRAFTED = 5
"""Tokens of a row with drafts."""


def latent_variants(capability: int = HOPPER) -> list[KernelVariant]:
    """All variants of the kernels of latent attention."""
    return [
        *(variant for heads in _HEADS for variant in _attention(heads, capability)),
        *(_by_head(rows, heads, *sizes) for rows in (1, 100) for heads, *sizes in _PRODUCTS),
        *(_store(heads, dim) for heads, dim in ((16, 192), (20, 256))),
    ]


def _attention(heads: int, capability: int) -> Iterator[KernelVariant]:
    shape = LatentShape(heads, _ROTATED, _RANK, kv_bytes=2, capability=capability)
    named = f"bf16-{heads}x512+64"
    yield _reader(f"latent-decode-{named}", latent_decode, latent_decode_launch(shape, 1))
    yield _reader(f"latent-extend-{named}", latent_extend, latent_extend_launch(shape))
    if heads <= FEW_QUERY_ROWS:
        yield _reader(f"latent-decode-drafts-{named}", latent_decode, latent_decode_launch(shape, _DRAFTED))
    yield _variant(f"latent-merge-{named}", merge_latents, latent_merge_launch(shape), wide_loads=True)


def _reader(name: str, kernel: Any, launch: Launch) -> KernelVariant:
    return _variant(name, kernel, launch, wide_loads=True, pipelined_loads=True)


def _by_head(rows: int, heads: int, out_features: int, in_features: int) -> KernelVariant:
    tile = by_head_launch(rows)
    constexprs: dict[str, object] = {"IN_FEATURES": in_features, "OUT_FEATURES": out_features}
    constexprs |= {"INPUT_TILE": BY_HEAD_INPUTS, **tile.constexprs}
    strides = ("x_row_stride", "x_head_stride", "output_row_stride", "output_head_stride")
    tensors = ("x", "weight", "output")
    return KernelVariant(
        f"by-head-{tile.row_tile}-bf16-{heads}x{out_features}x{in_features}",
        by_head_kernel,
        {**dict.fromkeys(tensors, "*bf16"), "rows": "i32", **dict.fromkeys(strides, "i32")},
        constexprs,
        frozenset((*tensors, *strides)),
        tile.num_warps,
        tile.num_stages,
        wide_loads=True,
        pipelined_loads=True,
        warpgroup_matmul=True,
    )


def _store(heads: int, dim: int) -> KernelVariant:
    tensors = ("query", "down", "norm", "cos", "sin", "output", "kv")
    constexprs = latent_store_shape(heads, dim, _RANK, _ROTATED // 2)
    return KernelVariant(
        f"latent-store-bf16-{heads}x{dim}",
        rotate_and_store_latents_kernel,
        {
            **dict.fromkeys(tensors, "*bf16"),
            **dict.fromkeys(("positions", "slot_mapping"), "*i64"),
            "eps": "fp32",
            "block_stride": "i64",
        },
        constexprs,
        frozenset((*tensors, "block_stride")),
        latent_store_warps(_RANK),
        wide_loads=True,
    )


def _variant(name: str, kernel: Any, launch: Launch, **promises: bool) -> KernelVariant:
    known = {**TYPES, **dict.fromkeys(("query", "output", "kv_layer"), "*bf16")}
    signature = {argument: known[argument] for argument in kernel.arg_names if argument not in launch.constexprs}
    return KernelVariant(
        name,
        kernel,
        signature,
        launch.constexprs,
        frozenset(ALIGNED & signature.keys()),
        launch.num_warps,
        launch.num_stages,
        launch.programs,
        launch.max_registers,
        **promises,
    )
