"""The shipped variants of the kernels of latent attention, as described in `kernels.triton.variants`.

DeepSeek-V2-Lite has 16 heads, GLM-4.7-Flash 20 and DeepSeek-V3 128, all over a latent of 512 and 64 rotated dimensions.
"""

from collections.abc import Iterator
from typing import Any

from kernels.triton.attention_variants import ALIGNED, TYPES
from kernels.triton.decode import merge
from kernels.triton.latent_attention import latent_decode, latent_extend
from kernels.triton.tuning import FEW_QUERY_ROWS, Launch
from kernels.triton.tuning_latents import LatentShape, latent_decode_launch, latent_extend_launch, latent_merge_launch
from kernels.triton.variants import KernelVariant

_HEADS = (16, 20, 128)
_DRAFTED = 5
"""Tokens of a row with drafts."""


def latent_variants() -> list[KernelVariant]:
    """All variants of the kernels of latent attention."""
    return [variant for heads in _HEADS for variant in _attention(heads)]


def _attention(heads: int) -> Iterator[KernelVariant]:
    shape = LatentShape(heads, rotated=64, rank=512, kv_bytes=2)
    named = f"bf16-{heads}x512+64"
    yield _reader(f"latent-decode-{named}", latent_decode, latent_decode_launch(shape, 1))
    yield _reader(f"latent-extend-{named}", latent_extend, latent_extend_launch(shape))
    if heads <= FEW_QUERY_ROWS:
        yield _reader(f"latent-decode-drafts-{named}", latent_decode, latent_decode_launch(shape, _DRAFTED))
    yield _variant(f"latent-merge-{named}", merge, latent_merge_launch(shape), wide_loads=True)


def _reader(name: str, kernel: Any, launch: Launch) -> KernelVariant:
    return _variant(name, kernel, launch, wide_loads=True, pipelined_loads=True)


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
