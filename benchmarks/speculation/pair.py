"""Pairs of models whose drafts come true as often as is asked for, at the true cost of half a billion parameters."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.checkpoints import HALF_BILLION, byte_tokenizer, random_weights

DRAFT_LAYERS = 2
FREQUENT = 8192
"""Token ids below this are the frequent ones: text, too, is mostly made of a part of the vocabulary."""
FREQUENT_GAIN, RARE_GAIN = 3.0, 0.75
"""Standard deviations of logits. Rare tokens get some 4 % of a distribution; a few hundred have most of the rest."""
TRIAL_TOKENS = 256
BISECTIONS = 9
RING = 256
"""The tokens that the copying model goes through, over and over."""
RING_START = 1000

Weights = dict[str, Tensor]


def agreeing_pair(root: Path, acceptance: float) -> tuple[Path, Path, float]:
    """Folders of a target and of its first layers as a draft model, and the acceptance that was reached.

    The target's upper layers add little: what they add is scaled so that the token drawn from the hidden state above
    the first layers, with the same noise, is the target's own draw as often as asked for.
    """
    weights = random_weights(HALF_BILLION)
    gains = torch.full((len(weights["lm_head.weight"]), 1), RARE_GAIN, dtype=torch.bfloat16)
    gains[:FREQUENT] = FREQUENT_GAIN
    weights["lm_head.weight"] *= gains
    reached = _scale_upper_layers(weights, acceptance)
    first = {f"model.layers.{layer}." for layer in range(DRAFT_LAYERS)}
    lower = {
        name: tensor
        for name, tensor in weights.items()
        if not name.startswith("model.layers.") or any(name.startswith(prefix) for prefix in first)
    }
    draft = _save(root / "bench-pair-draft", lower, HALF_BILLION | {"num_hidden_layers": DRAFT_LAYERS})
    save_file({"frequent_tokens": torch.arange(FREQUENT, dtype=torch.int32)}, draft / "draft.safetensors")
    return _save(root / "bench-pair-target", weights, HALF_BILLION), draft, reached


def _scale_upper_layers(weights: Weights, acceptance: float) -> float:
    """Bisects the scale, in place, on random tokens drawn from at T = 1; the acceptance that was reached."""
    model = _as_module(weights)
    upper = [
        name
        for name in weights
        if name.endswith(("o_proj.weight", "down_proj.weight")) and int(name.split(".")[2]) >= DRAFT_LAYERS
    ]
    originals = {name: weights[name].clone() for name in upper}
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(16, FREQUENT, (1, TRIAL_TOKENS), generator=generator)
    noise = -torch.rand((TRIAL_TOKENS, len(weights["lm_head.weight"])), generator=generator).log().neg().log()
    low, high, reached = math.log(1e-3), 0.0, 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        for name in upper:
            weights[name].copy_(originals[name] * math.exp(middle))
        reached = _acceptance(model, tokens, noise)
        low, high = (middle, high) if reached > acceptance else (low, middle)
    return reached


@torch.inference_mode()
def _acceptance(model: Any, tokens: Tensor, noise: Tensor) -> float:
    """How often the draws of all layers and of the first ones agree."""
    states = model.model(tokens, output_hidden_states=True)
    of_target = model.lm_head(states.last_hidden_state)[0].float()
    of_draft = model.lm_head(model.model.norm(states.hidden_states[DRAFT_LAYERS]))[0, :, :FREQUENT].float()
    agree = (of_target + noise).argmax(-1) == (of_draft + noise[:, :FREQUENT]).argmax(-1)
    return float(agree.float().mean())


def _as_module(weights: Weights) -> Any:
    """transformers' model over the same memory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**{key: value for key, value in HALF_BILLION.items() if key != "architectures"})
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(weights, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


def copying_model(root: Path, probability: float) -> Path:
    """A folder of half a billion parameters that go round a ring of tokens, and leave it now and then.

    After a token of the ring the next one comes with this probability, else any token of the vocabulary; each stands
    for one of the ring, and the ring continues after it. So an answer copies a prompt that shows the ring once, in
    runs of 1 / (1 - probability) tokens. The layers compute as always and add next to nothing.
    """
    weights = random_weights(HALF_BILLION)
    vocab, hidden = weights["lm_head.weight"].shape
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= 0.01
    generator = torch.Generator().manual_seed(2)
    ring = torch.randn((RING, hidden), generator=generator)
    embedding = ring[torch.arange(vocab) % RING]
    embedding[RING_START : RING_START + RING] = ring
    weights["model.embed_tokens.weight"] = embedding.to(torch.bfloat16)
    noise = torch.randn((vocab, hidden), generator=generator) * 0.5 * hidden**-0.5  # logits of deviation 0.5
    others = vocab * math.exp(0.5**2 / 2)
    gain = math.log(probability / (1.0 - probability) * others)
    noise[RING_START : RING_START + RING] = gain / hidden * ring.roll(1, dims=0)
    weights["lm_head.weight"] = noise.to(torch.bfloat16)
    return _save(root / "bench-copying", weights, HALF_BILLION)


def ring_prompt(start: int) -> list[int]:
    """The whole ring once, from some place on."""
    return [RING_START + (start + offset) % RING for offset in range(RING)]


def _save(folder: Path, weights: Mapping[str, Tensor], config: Mapping[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(weights), folder / "model.safetensors", {"format": "pt"})
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
