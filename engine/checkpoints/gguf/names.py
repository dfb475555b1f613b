"""Maps GGUF tensor names to Hugging Face's."""

import re
from collections.abc import Mapping

from engine.models.config import UnsupportedCheckpoint
from engine.models.layout import EMBEDDING, FINAL_NORM, HEAD

ROPE_DIVISORS = "rope_freqs.weight"
"""Divisors of the rope frequencies; not a weight."""

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
}
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.([a-z_]+)\.(weight|bias)")


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor.

    Raises:
        UnsupportedCheckpoint: the supported families have no such tensor.
    """
    if name in _OUTER:
        return _OUTER[name]
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in _INNER:
        raise UnsupportedCheckpoint(f"tensor {name} is not understood")
    return f"model.layers.{match[1]}.{_INNER[match[2]]}.{match[3]}"
