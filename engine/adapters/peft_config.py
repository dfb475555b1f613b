"""The `adapter_config.json` of a PEFT folder: the scaling of its weights, and what is refused.

The format: https://github.com/huggingface/peft, `docs/source/developer_guides/checkpoint.md`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from engine.checkpoints.json_keys import Keys, read_json_object, shown

T = TypeVar("T")

CONFIG = "adapter_config.json"
_MAX_CONFIG_BYTES = 1 << 20
_MAX_ALPHA = 1e6
_MAX_PATTERNS = 4096

_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "milora")
"""Initialisations after which the base model's weights are others than those of its checkpoint."""

_REFUSED = {
    "use_dora": "DoRA is not supported: merge the adapter into a checkpoint of its own",
    "lora_bias": "biases of adapters are not supported",
    "use_qalora": "QALoRA is not supported",
    "use_bdlora": "block-diagonal adapters are not supported",
    "modules_to_save": "modules that were trained whole are not supported: serve a checkpoint of its own",
    "layer_replication": "an adapter cannot change the number of layers",
    "alora_invocation_tokens": "activated adapters (aLoRA) are not supported",
    "trainable_token_indices": "trained embeddings are not supported",
    "target_parameters": "adapters of parameters that are no modules, as of stacked experts, are not supported",
    "arrow_config": "mixtures of adapters are not supported",
    "kasa_config": "KaSA is not supported",
    "monteclora_config": "MonteCLoRA is not supported",
    "velora_config": "VeLoRA is not supported",
    "fan_in_fan_out": "transposed weights are not supported",
}
_READ = {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias", "init_lora_weights"}
_INERT = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
}
"""Keys that say how the adapter was trained. Which modules it changes, its tensors say."""


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The ranks of an adapter's modules, and the factors of their products. `base_model`: empty if it is not stated."""

    rank: int
    alpha: float
    by_root: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    base_model: str

    def rank_of(self, module: str) -> int:
        """The rank of a module, by its name in the base model."""
        return _by_pattern(self.ranks, module, self.rank)

    def scaling_of(self, module: str) -> float:
        """alpha / rank or, in rank-stabilised LoRA (arXiv 2312.03732), alpha / sqrt(rank)."""
        rank = self.rank_of(module)
        return _by_pattern(self.alphas, module, self.alpha) / (math.sqrt(rank) if self.by_root else rank)


def read_peft_config(folder: Path, max_rank: int) -> PeftConfig:
    """Read and check a folder's config.

    Raises:
        UnsupportedCheckpoint: the message names the key.
    """
    keys = Keys(read_json_object(folder / CONFIG, _MAX_CONFIG_BYTES), f"{CONFIG}: ")
    if (kind := keys.text("peft_type")) != "LORA":
        raise keys.refuse("peft_type", f"{kind!r:.80} is not LORA")
    for key, why in _REFUSED.items():
        if keys.values.get(key) not in (None, False, [], {}):
            raise keys.refuse(key, why)
    if (bias := keys.text("bias", "none")) != "none":
        raise keys.refuse("bias", f"{bias!r:.80}: biases that were trained along are not supported")
    _check_initialisation(keys)
    keys.only(_READ, _INERT | _REFUSED.keys())
    alpha = keys.number("lora_alpha", 8)
    return PeftConfig(
        rank=keys.size("r", 8, maximum=max_rank),
        alpha=_bounded_alpha(keys, "lora_alpha", alpha),
        by_root=keys.flag("use_rslora"),
        ranks={
            name: patterns.size(name, maximum=max_rank)
            for patterns in [_patterns(keys, "rank_pattern")]
            for name in patterns.values
        },
        alphas={
            name: _bounded_alpha(patterns, name, patterns.number(name))
            for patterns in [_patterns(keys, "alpha_pattern")]
            for name in patterns.values
        },
        base_model=shown(keys.text("base_model_name_or_path", "")),
    )


def _check_initialisation(keys: Keys) -> None:
    kind = keys.values.get("init_lora_weights")
    if isinstance(kind, str) and kind.lower().startswith(_CHANGES_BASE):
        raise keys.refuse(
            "init_lora_weights",
            f"{kind!r:.80} changes the base model's weights; convert the adapter with PEFT (save_pretrained with "
            "path_initial_model_for_weight_conversion)",
        )


def _patterns(keys: Keys, key: str) -> Keys:
    """Values by pattern of a module's name. PEFT takes regular expressions; here they are names and their ends, as an
    expression of a stranger can take any time."""
    patterns: Mapping[str, Any] = keys.mapping(key)
    if len(patterns) > _MAX_PATTERNS:
        raise keys.refuse(key, f"has {len(patterns)} entries, more than {_MAX_PATTERNS}")
    for pattern in patterns:
        if not re.fullmatch(r"\^?(\w|\\?\.)+\$?", pattern):
            raise keys.refuse(key, f"{shown(pattern)!r} is not a module's name")
    return Keys(patterns, f"{keys.prefix}{key}: ")


def _bounded_alpha(keys: Keys, key: str, alpha: float) -> float:
    if not 0 < alpha <= _MAX_ALPHA:
        raise keys.refuse(key, f"{alpha:g} is not a positive number up to {_MAX_ALPHA:g}")
    return alpha


def _by_pattern(values: Mapping[str, T], module: str, default: T) -> T:
    """The value of the first pattern that is the module's name, or the end of it after a dot."""
    for pattern, value in values.items():
        name = pattern.removeprefix("^").removesuffix("$").replace("\\.", ".")
        if module == name or (not pattern.startswith("^") and module.endswith(f".{name}")):
            return value
    return default
