"""The shipped variants of the kernels of gated delta nets, as described in `kernels.triton.variants`: the shapes of
Qwen3-Next and Qwen3.5, and one whose dimensions fill no tile."""

from collections.abc import Mapping

from kernels.delta import DeltaShape
from kernels.triton import activation, delta
from kernels.triton.delta_launch import launch_of
from kernels.triton.tiles import MOVED_TILE, warps_for
from kernels.triton.variants import KernelVariant

_DTYPES = ("bf16", "fp16")
_SHAPES = {
    "d128": DeltaShape(key_heads=16, value_heads=32, key_dim=128, value_dim=128, taps=4),
    "d128-tiled": DeltaShape(key_heads=16, value_heads=48, key_dim=128, value_dim=128, taps=4, tiled=True),
    "d96": DeltaShape(key_heads=8, value_heads=16, key_dim=96, value_dim=80, taps=3),
    "d512": DeltaShape(key_heads=4, value_heads=4, key_dim=512, value_dim=512, taps=16),
}


def delta_variants() -> list[KernelVariant]:
    """All variants of these kernels."""
    shipped = [(dtype, name) for dtype in _DTYPES for name in _SHAPES if dtype == "bf16" or name == "d128"]
    return [
        *(variant for dtype, name in shipped for variant in _of_shape(dtype, name, _SHAPES[name])),
        *(_sigmoid_mul(dtype) for dtype in _DTYPES),
    ]


def _of_shape(dtype: str, name: str, shape: DeltaShape) -> list[KernelVariant]:
    launch = launch_of(shape)
    return [
        KernelVariant(
            name=f"delta-inputs-{dtype}-{name}",
            kernel=delta.delta_inputs_kernel,
            signature={
                **dict.fromkeys(("mixed", "gates"), f"*{dtype}"),
                **dict.fromkeys(("rows", "token_rows"), "*i32"),
                **dict.fromkeys(("memory", "convolution", "decay_rate", "step_bias", "output", "gating"), "*fp32"),
                "tokens": "i32",
                "slot_stride": "i32",
            },
            constexprs=_without_warps(launch.inputs),
            aligned=frozenset(
                {"mixed", "gates", "rows", "token_rows", "memory", "convolution", "output", "slot_stride"}
            ),
            num_warps=_warps(launch.inputs),
            wide_loads=True,
            fused_products=False,
        ),
        *(_rule(dtype, name, shape, settles=settles) for settles in (False, True)),
        KernelVariant(
            name=f"gated-norm-{dtype}-{name}",
            kernel=delta.gated_norm_kernel,
            signature={
                **dict.fromkeys(("x", "weight"), "*fp32"),
                **dict.fromkeys(("mixed", "output"), f"*{dtype}"),
                "lines": "i32",
                "eps": "fp32",
            },
            constexprs=_without_warps(launch.norm),
            aligned=frozenset({"x", "weight", "mixed", "output"}),
            num_warps=_warps(launch.norm),
            wide_loads=True,
        ),
    ]


def _rule(dtype: str, name: str, shape: DeltaShape, *, settles: bool) -> KernelVariant:
    launch = launch_of(shape)
    absent: dict[str, object] = {} if settles else {"settled": None}
    return KernelVariant(
        name=f"delta-rule-{dtype}-{name}" + ("-settled" if settles else ""),
        kernel=delta.delta_rule_kernel,
        signature={
            **dict.fromkeys(("inputs", "gating", "memory", "output"), "*fp32"),
            "mixed": f"*{dtype}",
            **dict.fromkeys(("rows", "saves", *(("settled",) if settles else ())), "*i32"),
            "slot_stride": "i32",
        },
        constexprs=absent | _without_warps(launch.rule),
        aligned=frozenset({"inputs", "gating", "memory", "output", "mixed", "rows", "saves", "slot_stride"}),
        num_warps=_warps(launch.rule),
        wide_loads=True,
        fused_products=False,
    )


def _sigmoid_mul(dtype: str) -> KernelVariant:
    return KernelVariant(
        name=f"sigmoid-mul-{dtype}",
        kernel=activation.sigmoid_mul_kernel,
        signature=dict.fromkeys(("x", "gate", "output"), f"*{dtype}"),
        constexprs={"WIDTH": 4096, "TILE": MOVED_TILE},
        aligned=frozenset({"x", "gate", "output"}),
        num_warps=warps_for(MOVED_TILE),
        wide_loads=True,
    )


def _warps(launch: Mapping[str, int | float]) -> int:
    return int(launch["num_warps"])


def _without_warps(launch: Mapping[str, int | float]) -> dict[str, object]:
    return {name: value for name, value in launch.items() if name != "num_warps"}
