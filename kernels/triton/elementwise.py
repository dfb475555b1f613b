"""The shipped variants of the kernels around attention, as described in `kernels.triton.variants`.

What is compiled depends on a model's widths and heads. There is one variant for each path through the code: widths that
fill a tile and widths that do not, every head dimension, heads with norms and without, all dimensions rotated or some,
KV in the model's dtype and in fp8.
"""

from dataclasses import dataclass
from itertools import product

from kernels.triton import activation, blocks, embedding, norms, rotary
from kernels.triton.tiles import MOVED_TILE, tile_above, warps_for
from kernels.triton.variants import KernelVariant

_DTYPES = ("bf16", "fp16")
_FP8, _INT8 = "fp8e4nv", "i8"
_NAMED = {_FP8: "-fp8", _INT8: "-int8kv"}


@dataclass(frozen=True, slots=True)
class _Heads:
    """Query heads, KV heads (0 where they are those of another layer), dimensions of each and rotated dimensions;
    whether heads are normed, and values, too."""

    queries: int
    kv_heads: int
    dim: int
    rotated: int
    normed: bool = False
    value_normed: bool = False

    def __str__(self) -> str:
        rotated = f"r{self.rotated}" if self.rotated < self.dim else ""
        return f"d{self.dim}{rotated}" + "-normed" * self.normed + "-values" * self.value_normed


_WIDTHS = (576, 4096, 16_384)
_GATES = {
    "silu-mul": activation.silu_mul_kernel,
    "gelu-mul": activation.gelu_mul_kernel,
    "clamped-swiglu-mul": activation.clamped_swiglu_mul_kernel,
}
_SUMS = {
    "add-rms-norm": ("x_weight", "scalar", "finite"),
    "add-rms-norm-checked": ("x_weight", "scalar"),
    "add-normed-rms-norm": ("scalar", "finite"),
    "add-normed-scaled-rms-norm": ("finite",),
    "add-normed-scaled-rms-norm-checked": (),
    "add-normed": ("weight", "output", "scalar", "finite"),
}
"""Sums with the residual stream, and the arguments that each has not."""
_HEADS = (
    _Heads(32, 8, 64, 64),
    _Heads(32, 32, 80, 32),
    _Heads(32, 32, 96, 96),
    _Heads(32, 8, 128, 128),
    _Heads(32, 8, 128, 128, normed=True),
    _Heads(32, 2, 128, 64),
    _Heads(16, 8, 256, 64, normed=True),
    _Heads(16, 8, 256, 256, normed=True, value_normed=True),
    _Heads(16, 2, 512, 512, normed=True, value_normed=True),
)
_QUERIES = (
    _Heads(32, 0, 128, 64),
    _Heads(8, 0, 256, 256, normed=True),
    _Heads(8, 0, 512, 512, normed=True),
)
"""Of layers that share the KV of another."""


def elementwise_variants() -> list[KernelVariant]:
    """All variants of these kernels."""
    return [
        *(variant for dtype, width in product(_DTYPES, _WIDTHS) for variant in _by_width(dtype, width)),
        *(_rotary(dtype, dtype, heads) for dtype, heads in product(_DTYPES, _HEADS)),
        *(
            _rotary(dtype, stored, heads)
            for dtype, stored, heads in product(_DTYPES, (_FP8, _INT8), (*_HEADS[3:5], _HEADS[-1]))
        ),
        *(_rotary(dtype, dtype, heads) for dtype, heads in product(_DTYPES, _QUERIES)),
        *_of_blocks(),
    ]


def _by_width(dtype: str, width: int) -> list[KernelVariant]:
    """The kernels on rows of one width."""
    rows = f"*{dtype}"
    tile = tile_above(width)
    whole = {"WIDTH": width, "TILE": tile}
    tiled = {"WIDTH": width, "TILE": MOVED_TILE}
    return [
        KernelVariant(
            name=f"rms-norm-{dtype}-{width}",
            kernel=norms.rms_norm_kernel,
            signature={"x": rows, "weight": rows, "output": rows, "eps": "fp32"},
            constexprs=whole,
            aligned=frozenset({"x", "weight", "output"}),
            num_warps=warps_for(tile),
            wide_loads=True,
        ),
        *(_sum(f"{name}-{dtype}-{width}", rows, absent, width) for name, absent in _SUMS.items()),
        *(
            KernelVariant(
                name=f"{name}-{dtype}-{width}",
                kernel=kernel,
                signature={"gate_up": rows, "output": rows},
                constexprs=tiled,
                aligned=frozenset({"gate_up", "output"}),
                num_warps=warps_for(MOVED_TILE),
                wide_loads=True,
            )
            for name, kernel in _GATES.items()
        ),
        KernelVariant(
            name=f"embed-{dtype}-{width}",
            kernel=embedding.embed_kernel,
            signature={"table": rows, "token_ids": "*i64", "output": rows},
            constexprs=tiled,
            aligned=frozenset({"table", "output"}),
            num_warps=warps_for(MOVED_TILE),
            wide_loads=True,
        ),
    ]


def _sum(name: str, rows: str, absent: tuple[str, ...], width: int) -> KernelVariant:
    tensors = {"x", "x_weight", "residual", "weight", "output"} - {*absent}
    signature = {**dict.fromkeys(tensors, rows), "eps": "fp32"} | ({} if "scalar" in absent else {"scalar": "fp32"})
    signature |= {} if "finite" in absent else {"finite": "*i8"}
    tile = tile_above(width)
    return KernelVariant(
        name=name,
        kernel=norms.add_rms_norm_kernel,
        signature=signature,
        constexprs={"WIDTH": width, "TILE": tile} | dict.fromkeys(absent),
        aligned=frozenset(tensors),
        num_warps=warps_for(tile),
        wide_loads=True,
    )


def _rotary(dtype: str, kv_dtype: str, heads: _Heads) -> KernelVariant:
    rows = f"*{dtype}"
    vectors = ["qkv", "cos", "sin", "query"]
    if heads.normed:
        vectors += ["query_weight", "key_weight"] if heads.kv_heads else ["query_weight"]
    if heads.value_normed:
        vectors.append("value_weight")
    signature = {**dict.fromkeys(vectors, rows), "positions": "*i64", "eps": "fp32"}
    if heads.kv_heads:
        signature |= {"slot_mapping": "*i64", "kv": f"*{kv_dtype}", "block_stride": "i64"}
    if kv_dtype == _FP8:
        signature |= dict.fromkeys(("key_scale", "value_scale"), "fp32")
    constexprs = rotary.shape_of(heads.queries, heads.kv_heads, heads.dim, heads.rotated // 2)
    kernel = rotary.rotate_and_store_kernel
    absent = dict.fromkeys({*kernel.arg_names} - {*signature, *constexprs})
    named = "rotate-and-store" if heads.kv_heads else "rotate"
    return KernelVariant(
        name=f"{named}-{dtype}-{heads}" + _NAMED.get(kv_dtype, ""),
        kernel=kernel,
        signature=signature,
        constexprs=absent | constexprs,
        aligned=frozenset({*vectors, "kv", "block_stride"} & signature.keys()),
        num_warps=rotary.warps_of(heads.dim, heads.rotated // 2),
        wide_loads=True,
    )


def _of_blocks() -> list[KernelVariant]:
    """Blocks are words whatever their dtype; these have 8 KV heads of 128 dimensions in 16 bits."""
    words: dict[str, object] = {"WORDS": 16 * 2 * 8 * 128 * 2 // 8, "TILE": MOVED_TILE}
    strides = ("source_block_stride", "source_layer_stride", "target_block_stride", "target_layer_stride")
    variants = [
        KernelVariant(
            name="clear-blocks",
            kernel=blocks.clear_blocks_kernel,
            signature={"kv": "*i64", "block_ids": "*i64", "block_stride": "i64", "layer_stride": "i64"},
            constexprs=words,
            aligned=frozenset({"kv", "block_stride", "layer_stride"}),
            num_warps=warps_for(MOVED_TILE),
        )
    ]
    for name, ids in {
        "copy-blocks": ("source_ids", "target_ids"),
        "gather-blocks": ("source_ids",),
        "scatter-blocks": ("target_ids",),
    }.items():
        absent = {"source_ids", "target_ids"} - set(ids)
        variants.append(
            KernelVariant(
                name=name,
                kernel=blocks.move_blocks_kernel,
                signature={
                    **dict.fromkeys(("source", "target", *ids), "*i64"),
                    **dict.fromkeys(strides, "i64"),
                },
                constexprs=words | dict.fromkeys(absent),
                aligned=frozenset({"source", "target", *strides}),
                num_warps=warps_for(MOVED_TILE),
                wide_loads=True,
            )
        )
    return variants
