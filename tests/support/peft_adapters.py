"""PEFT folders with random weights, and the base models with them applied."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

from tests.support.tiny_models import reference_model

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
DENSE = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def make_adapter(
    folder: Path, base: Path, targets: Sequence[str] | str = DENSE, *, seed: int = 0, rank: int = 4, **config: Any
) -> PreTrainedModel:
    """Write an adapter of the modules whose names end so, and return the base model with it, in float32 and in eval
    mode. Its weights are large enough that greedy text differs from the base's."""
    torch.manual_seed(seed)
    settings = {"lora_alpha": 2 * rank} | config
    modules = targets if isinstance(targets, str) else list(targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT reads what transformers deprecates
        model = get_peft_model(reference_model(base), LoraConfig(r=rank, target_modules=modules, **settings))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 2 / rank)
    model.save_pretrained(str(folder))
    return cast(PreTrainedModel, model.eval())
