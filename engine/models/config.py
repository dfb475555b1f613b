"""The architecture of a model: the result of reading any checkpoint format, and all that the model code depends on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]

MAX_LAYERS = 1024
MAX_WIDTH = 1 << 24
MAX_POSITION = 1 << 27
MAX_ROPE_FACTOR = 65_536.0
"""Bounds of the values in a checkpoint's config, far above any real model, so that no value costs memory or time."""

MAX_HEAD_DIM = 512
"""Maximum head dimension of the attention kernels; real models have 64 to 256."""


class UnsupportedCheckpoint(ValueError):
    """A checkpoint that cannot be served. The message names the unsupported key or tensor."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding (RoFormer, Su et al., arXiv 2104.09864) and its scaling beyond the trained context.

    `factor` applies to every kind but `default`. The frequency bounds belong to `llama3`; the betas, both `mscale`s and
    `attention_factor` to `yarn` (Peng et al., arXiv 2309.00071). `original_max_position`: the trained context in
    tokens; required by every kind but `default`.
    """

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    rotary_dim: int | None = None
    """Rotated leading dimensions of a head; None: all of them."""
    frequency_divisors: tuple[float, ...] | None = None
    """Divisors of the rotary_dim / 2 frequencies, applied after `kind`. GGUF files encode `llama3` scaling this way
    (tensor `rope_freqs.weight`), with kind `default`."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A dense decoder-only transformer of the Llama architecture.

    `windows[i]`: sliding attention window of layer i in tokens (a token attends to itself and the window - 1 before
    it), or None for full attention. `eos_token_ids` end a sequence unless the request ignores them. `max_position`:
    context window in tokens that the model can serve, with rope scaling.

    Raises:
        UnsupportedCheckpoint: the values contradict each other; the message names the field.
    """

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope: RopeConfig
    windows: tuple[int | None, ...]
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        for field in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_heads",
            "num_kv_heads",
            "head_dim",
        ):
            if not 1 <= getattr(self, field) <= MAX_WIDTH:
                raise UnsupportedCheckpoint(f"{field}: {getattr(self, field)} is not in 1..{MAX_WIDTH}")
        if not 1 <= self.num_layers <= MAX_LAYERS:
            raise UnsupportedCheckpoint(f"num_layers: {self.num_layers} is not in 1..{MAX_LAYERS}")
        if not 1 <= self.max_position <= MAX_POSITION:
            raise UnsupportedCheckpoint(f"max_position: {self.max_position} is not in 1..{MAX_POSITION}")
        if self.head_dim % 2 or self.head_dim > MAX_HEAD_DIM:
            raise UnsupportedCheckpoint(f"head_dim: {self.head_dim} is not an even number up to {MAX_HEAD_DIM}")
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedCheckpoint(f"num_kv_heads: {self.num_kv_heads} does not divide {self.num_heads} heads")
        if not (math.isfinite(self.rms_norm_eps) and self.rms_norm_eps > 0):
            raise UnsupportedCheckpoint(f"rms_norm_eps: {self.rms_norm_eps} is not a positive number")
        if len(self.windows) != self.num_layers:
            raise UnsupportedCheckpoint(f"windows: {len(self.windows)} for {self.num_layers} layers")
        if any(window is not None and window < 1 for window in self.windows):
            raise UnsupportedCheckpoint("windows: a sliding window is less than 1 token")
        for token_id in (*self.eos_token_ids, *(() if self.bos_token_id is None else (self.bos_token_id,))):
            if not 0 <= token_id < self.vocab_size:
                raise UnsupportedCheckpoint(f"eos or bos token id {token_id} is outside {self.vocab_size} tokens")
        self._check_rope()

    def of_layers(self, layers: Sequence[int]) -> "ModelConfig":
        """The model reduced to these layers, in this order."""
        return replace(self, num_layers=len(layers), windows=tuple(self.windows[layer] for layer in layers))

    def _check_rope(self) -> None:
        rope = self.rope
        rotary_dim = self.head_dim if rope.rotary_dim is None else rope.rotary_dim
        if rotary_dim % 2 or not 2 <= rotary_dim <= self.head_dim:
            raise UnsupportedCheckpoint(f"rope: {rotary_dim} rotated dimensions of {self.head_dim}; must be even")
        for field in ("high_freq_factor", "low_freq_factor", "beta_fast", "beta_slow", "attention_factor"):
            value = getattr(rope, field)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UnsupportedCheckpoint(f"rope {field}: {value} is not a positive number")
        if not (math.isfinite(rope.theta) and rope.theta > 1):
            raise UnsupportedCheckpoint(f"rope theta: {rope.theta} is not above 1")
        if not 1 <= rope.factor <= MAX_ROPE_FACTOR:
            raise UnsupportedCheckpoint(f"rope factor: {rope.factor} is not in 1..{MAX_ROPE_FACTOR}")
        if min(rope.mscale or 0.0, rope.mscale_all_dim or 0.0) < 0:
            raise UnsupportedCheckpoint("rope mscale: less than 0")
        if rope.kind == "dynamic" and rotary_dim == 2:
            raise UnsupportedCheckpoint("rope: dynamic needs more than 2 rotated dimensions")
        if rope.kind != "default" and (rope.original_max_position is None or rope.original_max_position < 1):
            raise UnsupportedCheckpoint(f"rope original_max_position: missing, and {rope.kind} needs it")
        if rope.kind == "llama3" and rope.low_freq_factor >= rope.high_freq_factor:
            raise UnsupportedCheckpoint("rope low_freq_factor: not below high_freq_factor")
        if rope.frequency_divisors is not None:
            if len(rope.frequency_divisors) != rotary_dim // 2:
                raise UnsupportedCheckpoint(f"rope frequency divisors: not {rotary_dim // 2} numbers")
            if not all(math.isfinite(value) and value > 0 for value in rope.frequency_divisors):
                raise UnsupportedCheckpoint("rope frequency divisors: a number that is not positive")
