"""The shipped variants of the products with quantised weights and experts, as described in `kernels.triton.variants`.

What is compiled depends on a weight's format and on the rows of a step. There is one variant for each format and each
tile, with and without splits in programs of their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from kernels.reference_rounded import GROUP_INPUTS, LARGEST
from kernels.triton.capability import HOPPER
from kernels.triton.experts import (
    EXPERT_INPUTS,
    expert_grouped_kernel,
    expert_linear_kernel,
    expert_rounded_kernel,
    weighted_sum_kernel,
)
from kernels.triton.few_rows import few_rows_kernel
from kernels.triton.grouped import grouped_linear_kernel
from kernels.triton.rounded import rounded_linear_kernel
from kernels.triton.rounding import GROUPS_TILE, ROW_TILE, round_groups_kernel, round_rows_kernel
from kernels.triton.routing import READ_TILE, align_kernel, count_kernel, route_kernel, rule_constexprs
from kernels.triton.splits import MERGED_TILE, merge_splits_kernel
from kernels.triton.tiles import MOVED_TILE, warps_for
from kernels.triton.tuning_products import (
    EXPERTS,
    FEW_ROWS,
    FEW_TOKENS,
    GROUPED_FEW,
    GROUPED_MANY,
    MANY_TOKENS,
    ROUNDED_FEW,
    ROUNDED_MANY,
    ProductTile,
    few_rows_inputs,
    tile_on,
)
from kernels.triton.variants import KernelVariant
from kernels.weights import PLAIN_ROUTING, RoutingRule

_WORDS = {4: "*i16", 8: "*i32"}
_EXPONENTS = {"scales": "*u8"}
"""Scales of MXFP4."""
_TYPES = {
    "scales": "*fp32",
    "zero_points": "*u8",
    "experts": "*i32",
    "assignments": "*i32",
    "partials": "*fp32",
    "arrivals": "*i32",
    "rows": "i32",
    "in_features": "i32",
    "out_features": "i32",
    "split_tiles": "i32",
    "splits": "i32",
}
_ALIGNED = frozenset(
    {
        "x",
        "codes",
        "scales",
        "zero_points",
        "bias",
        "output",
        "partials",
        "arrivals",
        "x_scales",
        "weight",
        "assignments",
        "in_features",
        "out_features",
    }
)

_ALL_FORMS = (
    ("few-splits", GROUPED_FEW, True, False),
    ("few", GROUPED_FEW, False, True),
    ("many-splits", GROUPED_MANY, True, False),
    ("many", GROUPED_MANY, False, False),
)
"""Name, tile, whether splits have programs of their own, and whether there is a bias."""
_PLAIN_FORMS = (_ALL_FORMS[0], _ALL_FORMS[3])
_ROUNDED = (("fp8e4nv", False), ("fp8e4nv", True), ("i8", False))
"""Type of codes, and whether scales are of 128 inputs."""
_KINDS = {"*fp8e4nv": "e4m3", "*i8": "i8"}
"""Of rounded weights, by type of codes, as in `kernels.triton.tuning_products`."""


_PLAIN = (("bf16", 2), ("fp16", 2), ("fp32", 4))
"""Types of plain weights, and their bytes."""


def product_variants(capability: int = HOPPER) -> list[KernelVariant]:
    """All variants of these kernels."""
    return [_on(capability, variant) for variant in _of_hopper()]


def _of_hopper() -> list[KernelVariant]:
    return [
        *(variant for bits, group in product((4, 8), (32, 64, 128)) for variant in _grouped("bf16", bits, group)),
        *_grouped("fp16", 4, 128, _PLAIN_FORMS),
        *_grouped("bf16", 4, 32, _PLAIN_FORMS, microscaled=True),
        *_merging("bf16"),
        *(variant for codes, grouped in _ROUNDED for variant in _rounded("bf16", codes, grouped)),
        *(_rounding("bf16", codes, grouped) for codes, grouped in _ROUNDED),
        *(variant for dtype, number_bytes in _PLAIN for variant in _few_rows(dtype, number_bytes)),
        *(variant for tile in (FEW_TOKENS, MANY_TOKENS) for variant in _experts("bf16", tile)),
        *_routing("bf16"),
    ]


def _on(capability: int, variant: KernelVariant) -> KernelVariant:
    """Hopper's variant with the tile of another GPU."""
    constexprs = variant.constexprs
    if not {"ROW_TILE", "OUTPUT_TILE"} <= constexprs.keys():
        return variant
    sizes = int(str(constexprs["ROW_TILE"])), int(str(constexprs["OUTPUT_TILE"]))
    codes = variant.signature.get("codes", "")
    kind = "plain" if not codes else _KINDS.get(codes, "grouped")
    tile = tile_on(capability, kind, ProductTile(*sizes, variant.num_warps, variant.num_stages))
    return replace(
        variant,
        constexprs={**constexprs, **tile.constexprs},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        max_registers=tile.max_registers,
    )


def _grouped(
    dtype: str,
    bits: int,
    group: int,
    forms: Sequence[tuple[str, ProductTile, bool, bool]] | None = None,
    *,
    microscaled: bool = False,
) -> Iterator[KernelVariant]:
    types = {"x": f"*{dtype}", "codes": _WORDS[bits], "bias": f"*{dtype}"} | (_EXPONENTS if microscaled else {})
    kind = "mxfp4" if microscaled else f"{bits}x{group}"
    for name, tile, partial, bias in forms or (_ALL_FORMS if group == 128 else _PLAIN_FORMS):
        constexprs: dict[str, object] = {"GROUP": group, "BITS": bits, "PARTIAL": partial}
        if microscaled:
            constexprs["zero_points"] = None
        if not bias:
            constexprs["bias"] = None
        output = "*fp32" if partial else f"*{dtype}"
        named = f"grouped-{kind}-{name}-{dtype}"
        yield _variant(named, grouped_linear_kernel, tile, types | {"output": output}, constexprs)


def _merging(dtype: str) -> Iterator[KernelVariant]:
    signature = {**_TYPES, "bias": f"*{dtype}", "output": f"*{dtype}"}
    names = merge_splits_kernel.arg_names
    for name, absent in (("merge-splits", {"bias": None}), ("merge-splits-bias", {})):
        constexprs: dict[str, object] = {"TILE": MERGED_TILE, **absent}
        given = {argument: signature[argument] for argument in names if argument not in constexprs}
        yield KernelVariant(
            name, merge_splits_kernel, given, constexprs, _ALIGNED & given.keys(), num_warps=4, wide_loads=True
        )


def _rounded(dtype: str, codes: str, grouped: bool) -> Iterator[KernelVariant]:
    types = {**dict.fromkeys(("x", "codes"), f"*{codes}"), "bias": f"*{dtype}", "x_scales": "*fp32"}
    for name, few, partial, bias in _ALL_FORMS:
        tile = ROUNDED_FEW if few is GROUPED_FEW else ROUNDED_MANY[grouped]
        constexprs: dict[str, object] = {"GROUPED": grouped, "PARTIAL": partial}
        if not bias:
            constexprs["bias"] = None
        named = f"rounded-{codes}{'-groups' if grouped else ''}-{name}-{dtype}"
        output = "*fp32" if partial else f"*{dtype}"
        yield _variant(named, rounded_linear_kernel, tile, types | {"output": output}, constexprs)


def _rounding(dtype: str, codes: str, grouped: bool) -> KernelVariant:
    largest = LARGEST[torch.int8 if codes == "i8" else torch.float8_e4m3fn]
    types = {"x": f"*{dtype}", "codes": f"*{codes}", "scales": "*fp32", "groups": "i32"}
    kernel, warps = (round_groups_kernel, 4) if grouped else (round_rows_kernel, 8)
    own: dict[str, object] = (
        {"GROUP": GROUP_INPUTS, "TILE": GROUPS_TILE} if grouped else {"WIDTH": 4096, "TILE": ROW_TILE}
    )
    constexprs: dict[str, object] = {"LARGEST": largest, **own}
    signature = {argument: types[argument] for argument in kernel.arg_names if argument not in constexprs}
    return KernelVariant(
        f"round{'-groups' if grouped else ''}-{codes}-{dtype}",
        kernel,
        signature,
        constexprs,
        frozenset({"x", "codes"}),
        num_warps=warps,
        wide_loads=True,
    )


def _few_rows(dtype: str, number_bytes: int) -> Iterator[KernelVariant]:
    """With splits, with one, and into logits."""
    types = dict.fromkeys(("x", "weight", "bias"), f"*{dtype}")
    for name, output, absent in (
        ("splits", dtype, ("bias",)),
        ("splits-bias", dtype, ()),
        ("one", dtype, ("bias", "partials")),
        ("one-bias", dtype, ("partials",)),
        ("wide", "fp32", ("bias", "partials")),
    ):
        for prefetched in (0, 4) if name == "splits" else (0,):
            fixed = {"INPUT_TILE": few_rows_inputs(number_bytes), "PREFETCHED": prefetched, **dict.fromkeys(absent)}
            named = f"few-rows-{name}{'-prefetched' * bool(prefetched)}-{dtype}"
            variant = _variant(named, few_rows_kernel, FEW_ROWS, types | {"output": f"*{output}"}, fixed)
            yield replace(variant, programs=2, warpgroup_matmul=dtype != "fp32")


def _experts(dtype: str, tile: int) -> Iterator[KernelVariant]:
    """Each format without a bias, and one with: they add it alike."""
    types = {"x": f"*{dtype}", "weight": f"*{dtype}", "output": f"*{dtype}", "x_scales": "*fp32"}
    plain: dict[str, object] = {"PER_LINE": 8, "INPUT_TILE": EXPERT_INPUTS}
    biased = types | {"bias": f"*{dtype}"}
    yield _variant(f"experts-bias-{tile}-{dtype}", expert_linear_kernel, EXPERTS["plain", tile], biased, plain)
    plain |= {"bias": None}
    yield _variant(f"experts-{tile}-{dtype}", expert_linear_kernel, EXPERTS["plain", tile], types, plain)
    for bits in (4, 8):
        fixed: dict[str, object] = {"PER_LINE": 8, "GROUP": 128, "BITS": bits, "bias": None}
        named = f"experts-{bits}x128-{tile}-{dtype}"
        own = types | {"codes": _WORDS[bits]}
        yield _variant(named, expert_grouped_kernel, EXPERTS["grouped", tile], own, fixed)
    fixed = {"PER_LINE": 4, "GROUP": 32, "BITS": 4, "zero_points": None}
    own = biased | {"codes": _WORDS[4]} | _EXPONENTS
    named = f"experts-mxfp4-bias-{tile}-{dtype}"
    yield _variant(named, expert_grouped_kernel, EXPERTS["grouped", tile], own, fixed)
    for codes, grouped in _ROUNDED:
        named = f"experts-{codes}{'-groups' if grouped else ''}-{tile}-{dtype}"
        own = types | dict.fromkeys(("x", "codes"), f"*{codes}")
        fixed = {"PER_LINE": 8, "GROUPED": grouped, "bias": None}
        yield _variant(named, expert_rounded_kernel, EXPERTS["rounded", tile], own, fixed)


_RULES = {
    "": (128, 8, PLAIN_ROUTING, False),
    "-sigmoid": (256, 8, RoutingRule("sigmoid", 2.5), True),
    "-groups": (256, 8, RoutingRule("sigmoid", 2.5, groups=8, groups_per_token=4, group_best=2), True),
    "-softmax-groups": (160, 6, RoutingRule("softmax", 16.0, groups=8, groups_per_token=3), False),
}
"""By name: experts, those of a token, the rule, and whether the choice has a bias."""


def _routing(dtype: str) -> Iterator[KernelVariant]:
    """The kernels around the products of a mixture of 128 experts, 8 for each token, and every rule."""
    types = {
        "logits": "*fp32",
        "choice_bias": "*fp32",
        "slot_mapping": "*i64",
        "share_scale": "*fp32",
        "weights": "*fp32",
        "outputs": f"*{dtype}",
        "output": f"*{dtype}",
        "assignments": "i32",
        "tiles": "i32",
        "expert_tokens": "*i64",
        **dict.fromkeys(("chosen", "counts", "experts", "places"), "*i32"),
    }

    def variant(name: str, kernel: Any, constexprs: dict[str, object], warps: int) -> KernelVariant:
        signature = {argument: types[argument] for argument in kernel.arg_names if argument not in constexprs}
        aligned = {"logits", "choice_bias", "share_scale", "outputs", "output", "chosen", "counts", "expert_tokens"}
        of_signature, wide = frozenset(aligned & signature.keys()), kernel is weighted_sum_kernel
        return KernelVariant(name, kernel, signature, constexprs, of_signature, num_warps=warps, wide_loads=wide)

    for name, (experts, per_token, rule, biased) in _RULES.items():
        shape: dict[str, object] = {"EXPERTS": experts, "PER_TOKEN": per_token, "RENORMALISE": True}
        absent: dict[str, object] = dict.fromkeys(("share_scale",) if biased else ("share_scale", "choice_bias"))
        yield variant(f"route{name}", route_kernel, shape | rule_constexprs(rule) | absent, 1)
    gemma4: dict[str, object] = {"EXPERTS": 128, "PER_TOKEN": 8, "RENORMALISE": True, "choice_bias": None}
    yield variant("route-scaled-shares", route_kernel, gemma4 | rule_constexprs(PLAIN_ROUTING), 1)
    yield variant("count", count_kernel, {"TILE": READ_TILE}, 4)
    sizes: dict[str, object] = {"EXPERTS": 128, "EXPERTS_TILE": 128, "ROW_TILE": FEW_TOKENS, "TILE": READ_TILE}
    yield variant("align", align_kernel, sizes, 4)
    summed: dict[str, object] = {"WIDTH": 2048, "PER_TOKEN": 8, "TILE": MOVED_TILE}
    yield variant("weighted-sum", weighted_sum_kernel, summed, warps_for(MOVED_TILE))


def _variant(
    name: str, kernel: Any, tile: ProductTile, types: Mapping[str, str], constexprs: Mapping[str, object]
) -> KernelVariant:
    fixed = {**tile.constexprs, **constexprs}
    known = {**_TYPES, **types}
    signature = {argument: known[argument] for argument in kernel.arg_names if argument not in fixed}
    return KernelVariant(
        name,
        kernel,
        signature,
        fixed,
        _ALIGNED & signature.keys(),
        tile.num_warps,
        tile.num_stages,
        wide_loads=True,
        pipelined_loads=True,
        warpgroup_matmul=True,
    )
