"""The families of Hugging Face checkpoints: one description for each `model_type`."""

from collections.abc import Mapping

from engine.checkpoints.huggingface.families import (
    deepseek,
    exaone4,
    gemma,
    gemma4,
    glm4,
    gpt_oss,
    granite,
    llama,
    mixtral,
    multimodal,
    olmo,
    phi3,
    qwen,
    qwen_hybrid,
    sigmoid_experts,
    smollm3,
)
from engine.checkpoints.huggingface.families.family import Family

_MODULES = (
    llama,
    qwen,
    mixtral,
    phi3,
    granite,
    smollm3,
    olmo,
    exaone4,
    glm4,
    gemma,
    gemma4,
    multimodal,
    gpt_oss,
    sigmoid_experts,
    deepseek,
    qwen_hybrid,
)

FAMILIES: Mapping[str, Family] = {family.model_type: family for module in _MODULES for family in module.FAMILIES}
"""Every family by its `model_type`."""

__all__ = ["FAMILIES", "Family"]
