"""The architecture of a model: the result of reading any checkpoint format, and all that the model code depends on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from engine.models.experts import ExpertsConfig
from engine.models.latent import LatentConfig
from engine.models.linear_attention import LinearAttentionConfig
from kernels.layout import HeadShape

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]
Activation = Literal["silu", "gelu_tanh", "clamped_swiglu"]

MAX_LAYERS = 1024
MAX_WIDTH = 1 << 24
MAX_POSITION = 1 << 27
MAX_ROPE_FACTOR = 65_536.0
"""Bounds of the values in a checkpoint's config, far above any real model, so that no value costs memory or time."""

MAX_FACTOR = 1e6
"""Maximum of the scales and softcaps of a config."""

MAX_HEAD_DIM = 512
"""Maximum head dimension of the attention kernels; real models have 64 to 256."""


class UnsupportedCheckpoint(ValueError):
    """A checkpoint that cannot be served. The message names the unsupported key or tensor."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding (RoFormer, Su et al., arXiv 2104.09864) and its scaling beyond the trained context.

    `factor` applies to every kind but `default`. The frequency bounds belong to `llama3`; the betas, both `mscale`s and
    `attention_factor` to `yarn` (Peng et al., arXiv 2309.00071). `attention_factor`, `short_divisors` and
    `long_divisors` belong to `longrope` (Ding et al., arXiv 2402.13753): the frequencies are divided by the long ones
    if the model serves sequences beyond `original_max_position`, else by the short ones. `original_max_position`: the
    trained context in tokens; required by every kind but `default` and `proportional`.

    `proportional`: frequencies are those of a rope over all D dimensions of a head, whose pairs are i and i + D / 2; of
    these the first `rotary_dim` / 2 rotate. In every other kind the first `rotary_dim` dimensions do, as a head of that
    size would.
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
    """Rotated dimensions of a head; None: all of them."""
    frequency_divisors: tuple[float, ...] | None = None
    """Divisors of the rotary_dim / 2 frequencies, applied after `kind`. GGUF files encode `llama3` scaling this way
    (tensor `rope_freqs.weight`), with kind `default`."""
    short_divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer: the Llama architecture, and the points at which other families differ from it.

    `windows[i]`: sliding attention window of layer i in tokens (a token attends to itself and the window - 1 before
    it), or None for full attention. `eos_token_ids` end a sequence unless the request ignores them. `max_position`:
    context window in tokens that the model can serve, with rope scaling.

    Norms: `pre_norm` is applied to the input of attention and of the MLP, `branch_norm` to their outputs before these
    are added to the residual stream. `norm_offset` is added to every norm's weight. `qk_norm`: queries and keys are
    normed, head by head or, with `qk_norm_whole`, over all heads at once. `value_norm`: values are normed, too, head by
    head and without a weight.

    `latent`: queries, keys and values are made of latents. Every head has keys and values of its own, of which only the
    latent is stored: see `LatentConfig.stored`.
    `attention_sinks`: heads have a learned score that only adds to the softmax's denominator.

    `attention_scale`: factor of attention scores; None: 1/sqrt(head_dim). A softcap c replaces x by c tanh(x / c), of
    scores (`attention_softcap`) or of logits (`logit_softcap`). `embedding_scale` multiplies embeddings,
    `residual_scale` the outputs of attention and MLP, and logits are divided by `logit_divisor`.

    `layer_ropes[i]`: rope of layer i, None for none; empty if every layer has `rope`. `experts`: the mixture of experts
    in place of the MLP in layers with `sparse_layers[i]`. `linear`: the gated delta net in place of attention in layers
    with `linear_layers[i]`, which have a state of fixed size and no KV. `attention_gate`: what attention returns is
    multiplied by the sigmoid of a projection of its input.

    `layer_heads[i]`: heads of layer i; empty if every layer has `num_kv_heads` of `head_dim` dimensions. The number of
    query heads is the same. `layer_scalars`: the residual stream is multiplied after each layer by a weight of it.
    `kv_sources[i]`: the layer whose keys and values layer i attends to, itself or an earlier one of the same heads and
    window; empty if each has its own. `layer_mlp_sizes[i]`: `intermediate_size` of layer i; empty if it is the same.
    `layer_input_size`: dimensions of a second embedding of each token for each layer, 0: none; see
    `kernels.weights.LayerInputs`.

    Raises:
        UnsupportedCheckpoint: the values contradict each other; the message names the field.
    """

    family: str
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
    pre_norm: bool = True
    branch_norm: bool = False
    norm_offset: float = 0.0
    qk_norm_whole: bool = False
    activation: Activation = "silu"
    attention_scale: float | None = None
    attention_softcap: float | None = None
    attention_sinks: bool = False
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_divisor: float = 1.0
    layer_ropes: tuple[RopeConfig | None, ...] = ()
    experts: ExpertsConfig | None = None
    sparse_layers: tuple[bool, ...] = ()
    latent: LatentConfig | None = None
    linear: LinearAttentionConfig | None = None
    linear_layers: tuple[bool, ...] = ()
    attention_gate: bool = False
    value_norm: bool = False
    layer_heads: tuple[HeadShape, ...] = ()
    layer_scalars: bool = False
    kv_sources: tuple[int, ...] = ()
    layer_mlp_sizes: tuple[int, ...] = ()
    layer_input_size: int = 0

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
        self._check_heads()
        if not (math.isfinite(self.rms_norm_eps) and self.rms_norm_eps > 0):
            raise UnsupportedCheckpoint(f"rms_norm_eps: {self.rms_norm_eps} is not a positive number")
        if len(self.windows) != self.num_layers:
            raise UnsupportedCheckpoint(f"windows: {len(self.windows)} for {self.num_layers} layers")
        if any(window is not None and window < 1 for window in self.windows):
            raise UnsupportedCheckpoint("windows: a sliding window is less than 1 token")
        for token_id in (*self.eos_token_ids, *(() if self.bos_token_id is None else (self.bos_token_id,))):
            if not 0 <= token_id < self.vocab_size:
                raise UnsupportedCheckpoint(f"eos or bos token id {token_id} is outside {self.vocab_size} tokens")
        self._check_factors()
        self._check_experts()
        self._check_latent()
        self._check_linear()
        self._check_shared()
        if self.layer_ropes and len(self.layer_ropes) != self.num_layers:
            raise UnsupportedCheckpoint(f"layer_ropes: {len(self.layer_ropes)} for {self.num_layers} layers")
        ropes = dict.fromkeys((self.rope_of(layer), self.heads_of(layer).dim) for layer in range(self.num_layers))
        for rope, head_dim in ropes:
            if rope is not None:
                _check_rope(rope, head_dim)

    @property
    def is_plain(self) -> bool:
        """Whether the model is of the Llama architecture alone, with QK norm, biases and windows at most."""
        return all(getattr(self, field.name) == field.default for field in fields(self) if field.name in _DEVIATIONS)

    @property
    def score_scale(self) -> float | None:
        """Factor of attention scores; None: one over the root of the dimensions of a key as it is stored."""
        if self.latent is None or self.attention_scale is not None:
            return self.attention_scale
        return float(self.head_dim**-0.5)

    def rope_of(self, layer: int) -> RopeConfig | None:
        """The rope of a layer; None: its positions are not encoded."""
        return self.layer_ropes[layer] if self.layer_ropes else self.rope

    def heads_of(self, layer: int) -> HeadShape:
        """The heads of a layer with attention, as its KV is stored."""
        if self.latent is not None:
            return self.latent.stored
        return self.layer_heads[layer] if self.layer_heads else HeadShape(self.num_kv_heads, self.head_dim)

    @property
    def kv_heads(self) -> tuple[HeadShape, ...]:
        """The heads of each layer with KV."""
        return tuple(map(self.heads_of, self._with_kv))

    @property
    def kv_windows(self) -> tuple[int | None, ...]:
        """The windows of each layer with KV."""
        return tuple(self.windows[layer] for layer in self._with_kv)

    @property
    def _with_kv(self) -> tuple[int, ...]:
        return tuple(layer for layer in range(self.num_layers) if not self.is_linear(layer) and self.has_kv(layer))

    def has_kv(self, layer: int) -> bool:
        """Whether a layer with attention has keys and values of its own."""
        return not self.kv_sources or self.kv_sources[layer] == layer

    def mlp_size(self, layer: int) -> int:
        """Width of a layer's MLP."""
        return self.layer_mlp_sizes[layer] if self.layer_mlp_sizes else self.intermediate_size

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has a mixture of experts."""
        return self.experts is not None and self.sparse_layers[layer]

    def is_linear(self, layer: int) -> bool:
        """Whether a layer has a gated delta net in place of attention."""
        return self.linear is not None and self.linear_layers[layer]

    @property
    def kv_layers(self) -> int:
        """The number of layers with KV."""
        return len(self._with_kv)

    @property
    def state_layers(self) -> int:
        """The number of layers with a recurrent state."""
        return sum(map(self.is_linear, range(self.num_layers)))

    def of_layers(self, layers: Sequence[int]) -> "ModelConfig":
        """The model reduced to these layers, in this order. A layer that attends to the KV of another one is reduced
        together with it."""
        places = {layer: place for place, layer in enumerate(layers)}
        return replace(
            self,
            num_layers=len(layers),
            windows=tuple(self.windows[layer] for layer in layers),
            layer_ropes=tuple(self.layer_ropes[layer] for layer in layers) if self.layer_ropes else (),
            sparse_layers=tuple(self.sparse_layers[layer] for layer in layers) if self.sparse_layers else (),
            linear_layers=tuple(self.linear_layers[layer] for layer in layers) if self.linear_layers else (),
            layer_heads=tuple(self.layer_heads[layer] for layer in layers) if self.layer_heads else (),
            layer_mlp_sizes=tuple(map(self.mlp_size, layers)) if self.layer_mlp_sizes else (),
            kv_sources=tuple(places[self.kv_sources[layer]] for layer in layers) if self.kv_sources else (),
        )

    def _check_heads(self) -> None:
        if self.layer_heads and len(self.layer_heads) != self.num_layers:
            raise UnsupportedCheckpoint(f"layer_heads: {len(self.layer_heads)} for {self.num_layers} layers")
        for heads in dict.fromkeys((HeadShape(self.num_kv_heads, self.head_dim), *self.layer_heads)):
            if heads.dim % 2 or not 2 <= heads.dim <= MAX_HEAD_DIM:
                raise UnsupportedCheckpoint(f"head_dim: {heads.dim} is not an even number up to {MAX_HEAD_DIM}")
            if heads.kv_heads < 1 or self.num_heads % heads.kv_heads:
                raise UnsupportedCheckpoint(f"num_kv_heads: {heads.kv_heads} does not divide {self.num_heads} heads")

    def _check_latent(self) -> None:
        if self.latent is None:
            return
        if (flaw := self.latent.flaw(self.head_dim, MAX_WIDTH)) is not None:
            raise UnsupportedCheckpoint(f"latent attention: {flaw}")
        if any(self.windows):
            raise UnsupportedCheckpoint("latent attention: with windows")
        for field in ("qk_norm", "attention_softcap", "attention_sinks"):
            if getattr(self, field):
                raise UnsupportedCheckpoint(f"latent attention: with {field}")

    def _check_shared(self) -> None:
        for layer, source in enumerate(self.kv_sources):
            if not (0 <= source <= layer and self.has_kv(source)):
                raise UnsupportedCheckpoint(f"kv_sources: layer {layer} cannot have the KV of layer {source}")
            if (self.heads_of(source), self.windows[source]) != (self.heads_of(layer), self.windows[layer]):
                raise UnsupportedCheckpoint(f"kv_sources: layers {source} and {layer} are of different kinds")
        for field in ("kv_sources", "layer_mlp_sizes"):
            if getattr(self, field) and len(getattr(self, field)) != self.num_layers:
                raise UnsupportedCheckpoint(f"{field}: {len(getattr(self, field))} for {self.num_layers} layers")
        if not all(1 <= size <= MAX_WIDTH for size in self.layer_mlp_sizes):
            raise UnsupportedCheckpoint(f"layer_mlp_sizes: a width that is not in 1..{MAX_WIDTH}")
        if not 0 <= self.layer_input_size * self.num_layers <= MAX_WIDTH:
            raise UnsupportedCheckpoint(f"layer_input_size: {self.layer_input_size} for {self.num_layers} layers")
        if self.layer_input_size and self.activation != "gelu_tanh":
            raise UnsupportedCheckpoint(f"layer_input_size: with the activation {self.activation}")
        if self.kv_sources and (self.linear is not None or self.latent is not None):
            raise UnsupportedCheckpoint("kv_sources: layers that share KV are of plain attention")

    def _check_factors(self) -> None:
        if self.value_norm and (not self.qk_norm or self.qk_norm_whole):
            raise UnsupportedCheckpoint("value_norm: without norms of the heads of queries and keys")
        for field in (
            "attention_scale",
            "attention_softcap",
            "logit_softcap",
            "embedding_scale",
            "residual_scale",
            "logit_divisor",
        ):
            value = getattr(self, field)
            if value is not None and not (math.isfinite(value) and 0 < value <= MAX_FACTOR):
                raise UnsupportedCheckpoint(f"{field}: {value} is not a positive number up to {MAX_FACTOR:g}")
        if not (self.pre_norm or self.branch_norm):
            raise UnsupportedCheckpoint("pre_norm: a model without norms")

    def _check_experts(self) -> None:
        experts = self.experts
        if experts is None:
            return
        if (flaw := experts.flaw(MAX_WIDTH, MAX_FACTOR)) is not None:
            raise UnsupportedCheckpoint(flaw)
        if len(self.sparse_layers) != self.num_layers:
            raise UnsupportedCheckpoint(f"sparse_layers: {len(self.sparse_layers)} for {self.num_layers} layers")

    def _check_linear(self) -> None:
        if self.linear is None:
            return
        if (flaw := self.linear.flaw()) is not None:
            raise UnsupportedCheckpoint(f"linear attention: {flaw}")
        if len(self.linear_layers) != self.num_layers:
            raise UnsupportedCheckpoint(f"linear_layers: {len(self.linear_layers)} for {self.num_layers} layers")
        if all(self.linear_layers):
            raise UnsupportedCheckpoint("linear_layers: no layer with attention")


_DEVIATIONS = frozenset(
    {
        "pre_norm",
        "branch_norm",
        "norm_offset",
        "qk_norm_whole",
        "activation",
        "attention_scale",
        "attention_softcap",
        "attention_sinks",
        "logit_softcap",
        "embedding_scale",
        "residual_scale",
        "logit_divisor",
        "layer_ropes",
        "experts",
        "latent",
        "linear",
        "attention_gate",
        "value_norm",
        "layer_heads",
        "layer_scalars",
        "kv_sources",
        "layer_mlp_sizes",
        "layer_input_size",
    }
)
"""Fields by which a family differs from the Llama architecture."""


def _check_rope(rope: RopeConfig, head_dim: int) -> None:
    rotary_dim = head_dim if rope.rotary_dim is None else rope.rotary_dim
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise UnsupportedCheckpoint(f"rope: {rotary_dim} rotated dimensions of {head_dim}; must be even")
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
    if rope.kind not in ("default", "proportional") and (
        rope.original_max_position is None or rope.original_max_position < 1
    ):
        raise UnsupportedCheckpoint(f"rope original_max_position: missing, and {rope.kind} needs it")
    if rope.kind == "longrope" and rope.original_max_position == 1:
        raise UnsupportedCheckpoint("rope original_max_position: longrope needs more than 1")
    if rope.kind == "llama3" and rope.low_freq_factor >= rope.high_freq_factor:
        raise UnsupportedCheckpoint("rope low_freq_factor: not below high_freq_factor")
    stretches = rope.kind == "longrope"
    for name, divisors, required in (
        ("frequency divisors", rope.frequency_divisors, rope.frequency_divisors is not None),
        ("short_factor", rope.short_divisors, stretches),
        ("long_factor", rope.long_divisors, stretches),
    ):
        if required:
            _check_divisors(name, divisors or (), rotary_dim // 2)


def _check_divisors(name: str, divisors: tuple[float, ...], pairs: int) -> None:
    if len(divisors) != pairs:
        raise UnsupportedCheckpoint(f"rope {name}: not {pairs} numbers")
    if not all(math.isfinite(value) and value > 0 for value in divisors):
        raise UnsupportedCheckpoint(f"rope {name}: a number that is not positive")
