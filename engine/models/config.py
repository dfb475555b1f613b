"""The shape of a model: what every checkpoint format is read into, and all that the model code looks at."""

from dataclasses import dataclass
from typing import Literal

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]


class UnsupportedCheckpoint(ValueError):
    """A checkpoint that cannot be served; the message names the key or the tensor that is not understood."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding (RoFormer, arXiv 2104.09864) and how it is stretched.

    `factor` applies to every kind but `default`. The frequency bounds belong to `llama3`; the betas, `mscale`s
    and `attention_factor` to `yarn` (arXiv 2309.00071). `original_max_position` is the trained window that a
    scaling stretches.
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
    """Rotated leading dimensions of a head; None rotates all of it."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A dense decoder-only transformer of the Llama shape.

    `windows[i]` is layer i's sliding attention window in tokens (a token sees itself and window - 1 before it),
    or None for full attention. `eos_token_ids` end a sequence unless the request ignores them.
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
