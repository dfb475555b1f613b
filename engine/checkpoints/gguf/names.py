"""Maps GGUF tensors to those of the layout."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from engine.checkpoints.gguf.architecture import Architecture
from engine.checkpoints.gguf.header import TensorInfo
from engine.checkpoints.row_order import HeadSplit, half_split_order, latent_key_order, latent_query_order
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.layout import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    LAYER_EMBEDDING,
    LAYER_INPUT_NORM,
    LAYER_PROJECTION,
    Shape,
    layer_tensors,
)
from kernels.arrays import Ints

ROPE_DIVISORS = "rope_freqs.weight"
"""Divisors of the rope frequencies; not a weight."""
LONG_DIVISORS, SHORT_DIVISORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""Those of longrope."""

_OUTER: Mapping[str, str] = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": FINAL_NORM,
    "output.weight": HEAD,
    "per_layer_token_embd.weight": LAYER_EMBEDDING,
    "per_layer_model_proj.weight": LAYER_PROJECTION,
    "per_layer_proj_norm.weight": LAYER_INPUT_NORM,
}
_INNER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_STACKED: Mapping[str, tuple[str, ...]] = {
    "ffn_gate_exps": ("gate_proj",),
    "ffn_up_exps": ("up_proj",),
    "ffn_down_exps": ("down_proj",),
    "ffn_gate_up_exps": ("gate_proj", "up_proj"),
}
"""Tensors of all experts, and whose rows each expert has in them."""
_SINKS, _ROW, _CHOICE, _RATES, _TAPS = "attn_sinks", "ffn_gate_inp_shexp", "exp_probs_b", "ssm_a", "ssm_conv1d"
_ANY_LAYER = re.compile(r"blk\.([0-9]{1,4})\.")
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.([a-z_0-9]+)(?:\.(weight|bias|scale))?")


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A tensor of the layout within a tensor of the file: of `expert`, if that has the tensors of all; rows [first,
    last), in the given order; `shape` has as many numbers. negated_exponential: the file has -exp of the numbers."""

    info: TensorInfo
    shape: Shape
    expert: int | None
    first: int
    last: int
    order: Callable[[], Ints] | None = None
    negated_exponential: bool = False

    @property
    def bytes(self) -> int:
        return self.info.bytes * math.prod(self.shape) // math.prod(self.info.shape)


def layout_parts(info: TensorInfo, architecture: Architecture, config: ModelConfig) -> Iterator[tuple[str, StoredPart]]:
    """The tensors of the layout that a tensor of the file holds, by name; none for a layer that only drafts.

    Raises:
        UnsupportedCheckpoint: the architecture has no such tensor.
    """
    name, shape = info.name, info.shape
    if name in _OUTER:
        yield _OUTER[name], StoredPart(info, shape, None, 0, shape[0])
        return
    drafting = _ANY_LAYER.match(name) if architecture.draft_layers else None
    if drafting is not None and int(drafting[1]) >= config.num_layers:
        return
    match = _LAYER.fullmatch(name)
    if match is None or (match[3] is None) != (match[2] == _RATES):
        raise UnsupportedCheckpoint(f"tensor {name} is not understood")
    layer, tensor, kind = match[1], match[2], match[3]
    prefix = f"model.layers.{layer}"
    if f"{tensor}.{kind}" in architecture.whole_names:
        yield f"{prefix}.{architecture.whole_names[f'{tensor}.{kind}']}", StoredPart(info, shape, None, 0, shape[0])
    elif tensor in _STACKED and config.experts is not None:
        yield from _stacked(info, f"{prefix}.mlp.experts", _STACKED[tensor], kind, config.experts.count)
    elif tensor in architecture.splits:
        yield from _split(info, prefix, architecture.splits[tensor](config), kind)
    elif tensor in architecture.fused:
        yield from _fused(info, prefix, architecture.fused[tensor], kind, config, int(layer))
    elif tensor == _SINKS and config.attention_sinks:
        yield f"{prefix}.self_attn.sinks", StoredPart(info, shape, None, 0, shape[0])
    elif (tensor, kind) == (_CHOICE, "bias"):
        yield f"{prefix}.mlp.gate.e_score_correction_bias", StoredPart(info, shape, None, 0, shape[0])
    elif tensor == _RATES and config.linear is not None:
        yield f"{prefix}.linear_attn.A_log", StoredPart(info, shape, None, 0, shape[0], negated_exponential=True)
    else:
        yield from _single(info, prefix, tensor, kind, architecture, config)


def _single(
    info: TensorInfo, prefix: str, tensor: str, kind: str, architecture: Architecture, config: ModelConfig
) -> Iterator[tuple[str, StoredPart]]:
    """A tensor that is one of the layout."""
    sparse = {} if config.experts is None else architecture.sparse_names
    names = {**_INNER, **architecture.names, **sparse}
    ours = names.get(tensor)
    if ours is None or kind == "scale":
        raise UnsupportedCheckpoint(f"tensor {info.name} is not understood")
    shape = info.shape
    if tensor == _ROW and len(shape) == 1:  # a matrix of one row, in newer files as in the layout
        shape = (1, *shape)
    elif tensor == _TAPS:
        shape = (shape[0], 1, *shape[1:])
    # The layout has the bias of a delta net's steps as a tensor of its own.
    name = f"{prefix}.{ours}" if ours.endswith(".dt_bias") else f"{prefix}.{ours}.{kind}"
    yield name, StoredPart(info, shape, None, 0, info.shape[0], _row_order(ours, architecture, config))


def _row_order(module: str, architecture: Architecture, config: ModelConfig) -> Callable[[], Ints] | None:
    """The rows of a module, where files have them in another order; read only once the shapes are known to be right."""
    projection = module.removeprefix("self_attn.")
    if config.latent is not None:
        if projection in ("q_proj", "q_b_proj"):
            return partial(latent_query_order, config, config.latent)
        return partial(latent_key_order, config.latent) if projection == "kv_a_proj_with_mqa" else None
    if architecture.rope_rows != "interleaved" or projection not in ("q_proj", "k_proj"):
        return None
    heads = config.num_heads if projection == "q_proj" else config.num_kv_heads
    return partial(half_split_order, heads, config.head_dim, config.rope.rotary_dim or config.head_dim)


def _stacked(
    info: TensorInfo, prefix: str, modules: tuple[str, ...], kind: str, experts: int
) -> Iterator[tuple[str, StoredPart]]:
    shape = info.shape
    if len(shape) < 2 or shape[0] != experts or shape[1] % len(modules):
        raise UnsupportedCheckpoint(f"tensor {info.name} has shape {list(shape)}: not that of all experts")
    rows = shape[1] // len(modules)
    for expert in range(experts):
        for place, module in enumerate(modules):
            part = StoredPart(info, (rows, *shape[2:]), expert, place * rows, (place + 1) * rows)
            yield f"{prefix}.{expert}.{module}.{kind}", part


def _split(info: TensorInfo, prefix: str, split: HeadSplit, kind: str) -> Iterator[tuple[str, StoredPart]]:
    rows = info.shape[0]
    if rows != split.total:
        raise UnsupportedCheckpoint(f"tensor {info.name} has shape {list(info.shape)}: not {split.total} rows")
    for module in split.modules:
        shape = (split.count(module), *info.shape[1:])
        yield f"{prefix}.{module}.{kind}", StoredPart(info, shape, None, 0, rows, partial(split.rows, module))


def _fused(
    info: TensorInfo, prefix: str, modules: tuple[str, ...], kind: str, config: ModelConfig, layer: int
) -> Iterator[tuple[str, StoredPart]]:
    sizes = {name: shape[0] for name, shape in layer_tensors(config, layer)} if layer < config.num_layers else {}
    first = 0
    for module in modules:
        last = first + sizes.get(f"{module}.{kind}", 0)
        if last > info.shape[0] or (module == modules[-1] and last != info.shape[0]):
            raise UnsupportedCheckpoint(f"tensor {info.name} has shape {list(info.shape)}: not the rows of {modules}")
        yield f"{prefix}.{module}.{kind}", StoredPart(info, (last - first, *info.shape[1:]), None, first, last)
        first = last
