"""Maps GGUF tensors to those of the layout."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.checkpoints.gguf.architectures import Architecture
from engine.checkpoints.gguf.header import TensorInfo
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.layout import EMBEDDING, FINAL_NORM, HEAD, Shape, layer_tensors

ROPE_DIVISORS = "rope_freqs.weight"
"""Divisors of the rope frequencies; not a weight."""
LONG_DIVISORS, SHORT_DIVISORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""Those of longrope."""

_OUTER: Mapping[str, str] = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": FINAL_NORM,
    "output.weight": HEAD,
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
_STACKED: Mapping[str, str] = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
"""Tensors of all experts."""
_SINKS, _ROW, _CHOICE = "attn_sinks", "ffn_gate_inp_shexp", "exp_probs_b"
_ANY_LAYER = re.compile(r"blk\.([0-9]{1,4})\.")
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.([a-z_]+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A tensor of the layout within a tensor of the file: of `expert`, if that has the tensors of all; rows [first,
    last)."""

    info: TensorInfo
    shape: Shape
    expert: int | None
    first: int
    last: int

    @property
    def is_row(self) -> bool:
        """Whether a vector of the file is a matrix of one row."""
        return len(self.shape) > len(self.info.shape)

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
    if match is None:
        raise UnsupportedCheckpoint(f"tensor {name} is not understood")
    layer, tensor, kind = match[1], match[2], match[3]
    prefix = f"model.layers.{layer}"
    if tensor in _STACKED and config.experts is not None:
        if len(shape) < 2 or shape[0] != config.experts.count:
            raise UnsupportedCheckpoint(f"tensor {name} has shape {list(shape)}: not that of all experts")
        for expert in range(shape[0]):
            part = StoredPart(info, shape[1:], expert, 0, shape[1])
            yield f"{prefix}.mlp.experts.{expert}.{_STACKED[tensor]}.{kind}", part
    elif tensor in architecture.fused:
        yield from _fused(info, prefix, architecture.fused[tensor], kind, config, int(layer))
    elif tensor == _SINKS and config.attention_sinks:
        yield f"{prefix}.self_attn.sinks", StoredPart(info, shape, None, 0, shape[0])
    elif (tensor, kind) == (_CHOICE, "bias"):
        yield f"{prefix}.mlp.gate.e_score_correction_bias", StoredPart(info, shape, None, 0, shape[0])
    else:
        ours = architecture.names.get(tensor) or _INNER.get(tensor)
        if ours is None:
            raise UnsupportedCheckpoint(f"tensor {name} is not understood")
        rows = shape[0]
        yield f"{prefix}.{ours}.{kind}", StoredPart(info, (1, *shape) if tensor == _ROW else shape, None, 0, rows)


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
