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
_FP8 = "fp8e4nv"


@dataclass(frozen=True, slots=True)
class _Heads:
    """Query heads, KV heads, dimensions of each and rotated dimensions; whether heads are normed."""

    queries: int
    kv_heads: int
    dim: int
    rotated: int
    normed: bool = False

    def __str__(self) -> str:
        return f"d{self.dim}" + (f"r{self.rotated}" if self.rotated < self.dim else "") + ("-normed" * self.normed)


_WIDTHS = (576, 4096, 16_384)
_GATES = {"silu-mul": activation.silu_mul_kernel, "clamped-swiglu-mul": activation.clamped_swiglu_mul_kernel}
_HEADS = (
    _Heads(32, 8, 64, 64),
    _Heads(32, 32, 80, 32),
    _Heads(32, 32, 96, 96),
    _Heads(32, 8, 128, 128),
    _Heads(32, 8, 128, 128, normed=True),
    _Heads(32, 2, 128, 64),
    _Heads(16, 8, 256, 64, normed=True),
)


def elementwise_variants() -> list[KernelVariant]:
    """All variants of these kernels."""
    return [
        *(variant for dtype, width in product(_DTYPES, _WIDTHS) for variant in _by_width(dtype, width)),
        *(_rotary(dtype, dtype, heads) for dtype, heads in product(_DTYPES, _HEADS)),
        *(_rotary(dtype, _FP8, heads) for dtype, heads in product(_DTYPES, _HEADS[3:5])),
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
        KernelVariant(
            name=f"add-rms-norm-{dtype}-{width}",
            kernel=norms.add_rms_norm_kernel,
            signature={"x": rows, "residual": rows, "weight": rows, "output": rows, "eps": "fp32"},
            constexprs=whole,
            aligned=frozenset({"x", "residual", "weight", "output"}),
            num_warps=warps_for(tile),
            wide_loads=True,
        ),
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


def _rotary(dtype: str, kv_dtype: str, heads: _Heads) -> KernelVariant:
    rows = f"*{dtype}"
    signature = {
        **dict.fromkeys(("qkv", "cos", "sin", "query"), rows),
        "slot_mapping": "*i64",
        "kv": f"*{kv_dtype}",
        "eps": "fp32",
        "block_stride": "i64",
    }
    absent: dict[str, object] = {}
    weights, scales = ("query_weight", "key_weight"), ("key_scale", "value_scale")
    if heads.normed:
        signature |= dict.fromkeys(weights, rows)
    else:
        absent |= dict.fromkeys(weights)
    if kv_dtype == _FP8:
        signature |= dict.fromkeys(scales, "fp32")
    else:
        absent |= dict.fromkeys(scales)
    half = heads.rotated // 2
    return KernelVariant(
        name=f"rotate-and-store-{dtype}-{heads}" + ("-fp8" if kv_dtype == _FP8 else ""),
        kernel=rotary.rotate_and_store_kernel,
        signature=signature,
        constexprs=absent | rotary.shape_of(heads.queries, heads.kv_heads, heads.dim, half),
        aligned=frozenset({"qkv", "cos", "sin", "query", "kv", "block_stride", *(weights if heads.normed else ())}),
        num_warps=rotary.warps_of(heads.dim, half),
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
