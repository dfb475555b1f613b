"""The text of models with a vision tower: Qwen2.5-VL, Qwen3-VL, Mistral Small 3 and Gemma 3.

Only text is served. Of a text the three axes of a multimodal rope (Qwen2-VL, arXiv 2409.12191, section 2.1) are equal:
it is the plain rope.
"""

from collections.abc import Mapping
from typing import Any

from engine.checkpoints.huggingface.families.family import Dims, Family, Fields, Stacked
from engine.checkpoints.huggingface.families.gemma import GEMMA3
from engine.checkpoints.huggingface.families.llama import mistral
from engine.checkpoints.huggingface.families.qwen import MOE_KEYS, qwen2, qwen3, qwen3_moe
from engine.checkpoints.json_keys import Keys

_AXES = frozenset({"mrope_section", "mrope_interleaved"})


def _qwen2_5_vl(keys: Keys, dims: Dims) -> Fields:
    return qwen2(_with_one_axis(keys), dims)


def _qwen3_vl(keys: Keys, dims: Dims) -> Fields:
    return qwen3(_with_one_axis(keys), dims)


def _qwen3_vl_moe(keys: Keys, dims: Dims) -> Fields:
    return qwen3_moe(_with_one_axis(Keys({**keys.values, "norm_topk_prob": True}, keys.prefix)), dims)


def _with_one_axis(keys: Keys) -> Keys:
    """The keys without those of the multimodal rope."""
    plain = dict(keys.values)
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(rope := keys.values.get(name), dict):
            plain[name] = {
                key: "default" if value == "mrope" and key in ("type", "rope_type") else value
                for key, value in rope.items()
                if key not in _AXES
            }
    return Keys(plain, keys.prefix)


_PREFIXES: Mapping[str, str] = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
_IGNORED = (r"(model\.)?(visual|vision_tower|multi_modal_projector)\.",)
_QWEN: dict[str, Any] = {"prefixes": _PREFIXES, "ignored": _IGNORED}

FAMILIES = (
    Family(
        "qwen2_5_vl",
        "Qwen2_5_VLForConditionalGeneration",
        _qwen2_5_vl,
        defaults={"rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5},
        text_types=frozenset({"qwen2_5_vl_text", "qwen2_5_vl"}),
        **_QWEN,
    ),
    Family(
        "qwen3_vl",
        "Qwen3VLForConditionalGeneration",
        _qwen3_vl,
        defaults={"head_dim": 128, "rope_theta": 500_000.0},
        text_types=frozenset({"qwen3_vl_text"}),
        **_QWEN,
    ),
    Family(
        "qwen3_vl_moe",
        "Qwen3VLMoeForConditionalGeneration",
        _qwen3_vl_moe,
        understood=MOE_KEYS,
        defaults={"rope_theta": 500_000.0, "num_experts_per_tok": 4, "moe_intermediate_size": 1408},
        stacked={
            "mlp.experts.gate_up_proj": Stacked(("gate_proj.weight", "up_proj.weight"), transposed=None),
            "mlp.experts.down_proj": Stacked(("down_proj.weight",), transposed=None),
        },
        text_types=frozenset({"qwen3_vl_moe_text"}),
        **_QWEN,
    ),
    Family(
        "mistral3",
        "Mistral3ForConditionalGeneration",
        mistral,
        text_types=frozenset({"mistral"}),
        prefixes=_PREFIXES,
        ignored=_IGNORED,
    ),
    Family(
        "gemma3",
        "Gemma3ForConditionalGeneration",
        text_types=frozenset({"gemma3_text"}),
        prefixes=_PREFIXES,
        ignored=_IGNORED,
        **GEMMA3,
    ),
)
