"""The shipped variants of the attention kernels, as described in `kernels.triton.variants`.

What is compiled depends on a model's heads and window. There is one variant for each path through the code: every head
dimension with KV in the model's dtype, in fp8 and in int8, rows with and without drafts, a window, and sinks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kernels.triton.attention_tiles import FEW_QUERY_ROWS
from kernels.triton.capability import HOPPER
from kernels.triton.decode import decode
from kernels.triton.extend import extend
from kernels.triton.plan import CLEARED_TILE, COUNTED_ROWS, SPLIT_TOKENS, count_splits
from kernels.triton.tuning import (
    AttentionShape,
    Launch,
    decode_launch,
    extend_launch,
)
from kernels.triton.variants import KernelVariant

_BF16, _FP16, _FP8, _INT8 = "bf16", "fp16", "fp8e4nv", "i8"
_WARPGROUP_ROWS = 64
"""Rows of a product of warp groups: PTX ISA, wgmma."""
_BYTES = {_BF16: 2, _FP16: 2, _FP8: 1, _INT8: 1}
_NAMED = {_FP8: "-kv8", _INT8: "-int8kv"}

TYPES = {
    "sinks": "*fp32",
    "partials": "*fp32",
    "partial_sums": "*fp32",
    "counters": "*i32",
    "block_tables": "*i32",
    "row_slots": "*i32",
    "query_starts": "*i32",
    "context_lens": "*i32",
    "split_starts": "*i32",
    "rows": "i32",
    "count": "i32",
    "first_row": "i32",
    "most_queries": "i32",
    "table_stride": "i32",
    "block_stride": "i32",
    "scale": "fp32",
    "value_scale": "fp32",
}
ALIGNED = frozenset({"query", "kv_layer", "output", "sinks", "partials", "partial_sums", "counters", "block_stride"})


@dataclass(frozen=True, slots=True)
class _Model:
    """The attention of a model: its dtype, that of its KV, its heads, and whether they have sinks."""

    dtype: str
    stored: str
    shape: AttentionShape
    sinks: bool = False

    def __str__(self) -> str:
        stored = _NAMED.get(self.stored, "")
        return (
            f"{self.dtype}{stored}-d{self.shape.head_dim}"
            + ("-window" if self.shape.window else "")
            + ("-cap" if self.shape.cap else "")
            + ("-sinks" if self.sinks else "")
        )


def _model(
    dtype: str,
    stored: str,
    kv_heads: int,
    group: int,
    head_dim: int,
    window: int = 0,
    cap: float = 0.0,
    *,
    sinks: bool = False,
) -> _Model:
    return _Model(dtype, stored, AttentionShape(kv_heads, group, head_dim, window, _BYTES[stored], cap), sinks)


_WHOLE = (
    _model(_BF16, _BF16, 3, 3, 64),
    _model(_BF16, _BF16, 8, 4, 128),
    _model(_BF16, _BF16, 4, 2, 256),
    _model(_BF16, _BF16, 2, 8, 512),
)
"""Models with all kernels listed."""

_PLAIN = (
    _model(_BF16, _BF16, 32, 1, 80),
    _model(_BF16, _BF16, 32, 1, 96),
    _model(_BF16, _BF16, 8, 4, 128, window=4096),
    _model(_BF16, _BF16, 4, 2, 256, window=1024),
    _model(_BF16, _BF16, 8, 2, 256, cap=50.0),
    _model(_BF16, _BF16, 8, 2, 256, window=4096, cap=50.0),
    _model(_BF16, _BF16, 16, 2, 128, cap=50.0),
    _model(_BF16, _BF16, 8, 8, 64, sinks=True),
    _model(_BF16, _BF16, 8, 8, 64, window=128, sinks=True),
    _model(_FP16, _FP16, 8, 4, 128),
    _model(_BF16, _FP8, 3, 3, 64),
    _model(_BF16, _FP8, 8, 8, 64, window=128, sinks=True),
    _model(_BF16, _FP8, 32, 1, 80),
    _model(_BF16, _FP8, 8, 4, 128),
    _model(_BF16, _FP8, 4, 2, 256),
    _model(_BF16, _FP8, 2, 8, 512),
    _model(_BF16, _INT8, 3, 3, 64),
    _model(_BF16, _INT8, 8, 8, 64, window=128, sinks=True),
    _model(_BF16, _INT8, 32, 1, 80),
    _model(_BF16, _INT8, 8, 4, 128),
    _model(_BF16, _INT8, 4, 2, 256),
    _model(_BF16, _INT8, 2, 8, 512),
)
"""Models with only the kernels listed that read KV for one token and for chunks; the others equal another model's."""


def attention_variants(capability: int = HOPPER) -> list[KernelVariant]:
    """All variants of the attention kernels."""
    whole, plain = ([_on(capability, model) for model in models] for models in (_WHOLE, _PLAIN))
    return [
        _counting(),
        *(variant for model in whole + plain for variant in _readers(model)),
        *(variant for model in whole for variant in _others(model)),
    ]


def _on(capability: int, model: _Model) -> _Model:
    return replace(model, shape=replace(model.shape, capability=capability))


def _readers(model: _Model) -> Iterator[KernelVariant]:
    yield _reader(f"decode-{model}", decode, decode_launch(model.shape, 1), model)
    launch = extend_launch(model.shape)
    of_groups = launch.constexprs["QUERY_TILE"] >= _WARPGROUP_ROWS
    yield _reader(f"extend-{model}", extend, launch, model, warpgroup_matmul=of_groups)


def _others(model: _Model) -> Iterator[KernelVariant]:
    more_than_few = FEW_QUERY_ROWS // model.shape.group + 1
    yield _reader(f"decode-drafts-{model}", decode, decode_launch(model.shape, more_than_few), model)


def _reader(name: str, kernel: Any, launch: Launch, model: _Model, **promises: bool) -> KernelVariant:
    types = {"query": f"*{model.dtype}", "output": f"*{model.dtype}", "kv_layer": f"*{model.stored}"}
    absent = {} if model.sinks else {"sinks": None}
    return _variant(name, kernel, launch, types, absent, wide_loads=True, pipelined_loads=True, **promises)


def _counting() -> KernelVariant:
    constexprs = {"SPLIT": SPLIT_TOKENS, "ROWS": COUNTED_ROWS, "TILE": CLEARED_TILE}
    launch = Launch(constexprs, num_warps=4, num_stages=3)
    return _variant("count-splits", count_splits, launch, {}, {})


def _variant(
    name: str, kernel: Any, launch: Launch, types: Mapping[str, str], absent: Mapping[str, None], **promises: bool
) -> KernelVariant:
    """`absent`: arguments that are not there."""
    known, constexprs = {**TYPES, **types}, {**launch.constexprs, **absent}
    signature = {argument: known[argument] for argument in kernel.arg_names if argument not in constexprs}
    return KernelVariant(
        name,
        kernel,
        signature,
        constexprs,
        frozenset(ALIGNED & signature.keys()),
        launch.num_warps,
        launch.num_stages,
        launch.programs,
        launch.max_registers,
        **promises,
    )
