"""The shipped variants of the products with adapters, as described in `kernels.triton.variants`."""

from collections.abc import Iterator
from itertools import product

from kernels.step import ROW_WORDS
from kernels.triton.adapters import expand_kernel, shrink_kernel, token_adapters_kernel
from kernels.triton.tuning_adapters import (
    FEW_TOKENS,
    MANY_TOKENS,
    RANKS,
    SPLIT_INPUTS,
    TOKEN_TILE,
    AdapterTile,
    rank_tile,
    shrink_inputs,
)
from kernels.triton.variants import KernelVariant

_TYPES = {
    **dict.fromkeys(("ranks", "slots", "tokens"), "*i32"),
    **dict.fromkeys(
        ("tiles", "products", "number", "base", "in_features", "out_features", "first_end", "second_end", "splits"),
        "i32",
    ),
    "partials": "*fp32",
    "slot_numbers": "i32",
}
_ALIGNED = frozenset({"x", "y", "memory", "partials", "tokens", "slot_numbers", "base", "in_features", "out_features"})
"""Of models whose widths are multiples of 16."""


def adapter_variants() -> list[KernelVariant]:
    """All variants of these kernels."""
    few_many = (("few", FEW_TOKENS), ("many", MANY_TOKENS))
    plain = [
        variant
        for (name, tile), ranks in product(few_many, sorted({rank_tile(rank) for rank in RANKS}))
        for variant in _products(f"{name}-r{ranks}", tile, ranks, 3)
    ]
    return [
        _token_adapters(),
        *plain,
        *(variant for parts in (1, 2) for variant in _products(f"few-r16-{parts}-parts", FEW_TOKENS, 16, parts)),
        *_products("few-r16", FEW_TOKENS, 16, 3, "fp16"),
    ]


def _products(name: str, tile: AdapterTile, ranks: int, parts: int, dtype: str = "bf16") -> Iterator[KernelVariant]:
    types = {**_TYPES, **dict.fromkeys(("x", "y", "memory"), f"*{dtype}")}
    sizes: dict[str, object] = {"PARTS": parts, "RANK_TILE": ranks, "ROW_TILE": tile.row_tile}
    inputs: dict[str, object] = {"INPUT_TILE": shrink_inputs(2), "SPLIT_INPUTS": SPLIT_INPUTS}
    outputs: dict[str, object] = {"ALIGNED": 16, "OUTPUT_TILE": tile.output_tile}
    for kernel, of_kernel, warps, stages in (
        (shrink_kernel, inputs, tile.shrink_warps, tile.shrink_stages),
        (expand_kernel, outputs, tile.expand_warps, 3),
    ):
        fixed = {**sizes, **of_kernel}
        signature = {argument: types[argument] for argument in kernel.arg_names if argument not in fixed}
        shrinks = kernel is shrink_kernel
        # A thread loads two of the smallest tile's sums.
        narrow = not shrinks and ranks * tile.row_tile < 4 * 32 * warps
        yield KernelVariant(
            f"adapters-{'shrink' if shrinks else 'expand'}-{name}-{dtype}",
            kernel,
            signature,
            fixed,
            _ALIGNED & signature.keys(),
            warps,
            stages,
            wide_loads=not narrow,
            pipelined_loads=shrinks,
        )


def _token_adapters() -> KernelVariant:
    types = {
        **dict.fromkeys(("rows", "token_rows", "adapters", "chosen"), "*i32"),
        "slot_mapping": "*i64",
        "tokens": "i32",
    }
    fixed: dict[str, object] = {"ROW": ROW_WORDS, "TILE": TOKEN_TILE}
    return KernelVariant(
        "token-adapters", token_adapters_kernel, types, fixed, frozenset({"rows", "adapters"}), num_warps=4
    )
