"""Weights on their way from a checkpoint to a backend, and their packed form.

V is a backend's type of vectors, L of packed matrices, E of embedding tables. Letters in shapes are those of
`kernels.ops`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

from kernels.arrays import Array, Floats
from kernels.delta import DeltaShape
from kernels.layout import HeadShape, MixedBlocks

V = TypeVar("V")
L = TypeVar("L")
E = TypeVar("E")
V_co = TypeVar("V_co", covariant=True)
L_co = TypeVar("L_co", covariant=True)

DENSE = "dense"
"""Unquantised numbers in the compute dtype: the weight format that every backend takes."""


ModelPart = Literal["experts", "latents", "delta nets", "adapters"]
"""A part that not every model has, with kernels of its own."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight [out_features, in_features] of a checkpoint.

    format: "dense", with `rows` [out_features, in_features] in the compute dtype; "int8" or "int4", with the same rows,
    which the backend is to quantise; or a GGUF block format by its lower-case name ("q4_0", "q6_k", ...), with `rows`
    uint8 [out_features, row bytes], the blocks as stored.
    rounded_inputs: the checkpoint was made for inputs that are rounded to int8. A backend may.
    input_scale: the scale to round them with; None: each token has its own.
    """

    format: str
    rows: Array
    out_features: int
    in_features: int
    rounded_inputs: bool = False
    input_scale: float | None = None

    @classmethod
    def dense(cls, rows: Array) -> "StoredWeight":
        out_features, in_features = rows.shape
        return cls(DENSE, rows, out_features, in_features)


@dataclass(frozen=True, slots=True)
class KVScales:
    """Scales of a layer's KV in fp8 e4m3: what is stored is the key or value divided by its scale."""

    key: float
    value: float


@dataclass(frozen=True)
class HeadNorms(Generic[V]):
    """RMS norms of queries and keys before rotation: weights [D] of each head, or, if `whole`, [Hq D] and [Hkv D] of
    all heads at once. `value`: [D], of the values of each head; None: they have no norm. `key` is not used in a layer
    without keys."""

    query: V
    key: V
    eps: float
    whole: bool = False
    value: V | None = None


@dataclass(frozen=True)
class LatentWeights(Generic[V, L]):
    """Queries, keys and values of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), absorbed:
    all heads attend to one key a token, of `rotated` dimensions and then the normed latent of keys and values, which is
    the value, too.

    query_down [H to a query's latent], normed by `query_norm`; None: queries are made of the input. query_up: to heads
    [Hq D], of each the rotated dimensions first. down: to the latent of keys and values, and after it to the rotated
    dimensions of keys; `norm` is of this latent. of_queries: of each head, from the other dimensions of its query to
    the latent. of_values: of each head, from the latent to its value of `value_dim` dimensions.
    """

    query_down: L | None
    query_norm: V | None
    query_up: L
    down: L
    norm: V
    of_queries: Sequence[L]
    of_values: Sequence[L]
    rotated: int
    value_dim: int
    eps: float


@dataclass(frozen=True)
class MlpWeights(Generic[L]):
    """A gated MLP. `gate_up`: as packed by `Packer.pack_gate_up`."""

    gate_up: L
    down: L


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """How a router's logits become scores, and these the choice and the shares of experts.

    scoring: softmax over all experts, or the sigmoid of each. scale: factor of the shares. groups: the experts are that
    many groups of neighbours, of which a token's come from the `groups_per_token` whose best `group_best` scores have
    the largest sum (DeepSeek-V2, arXiv 2405.04434, section 2.2.2; DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    """

    scoring: Literal["softmax", "sigmoid"] = "softmax"
    scale: float = 1.0
    groups: int = 1
    groups_per_token: int = 1
    group_best: int = 1


PLAIN_ROUTING = RoutingRule()

TINY_SHARE = 1e-20
"""Increment of the sum of sigmoids that shares are divided by."""


@dataclass(frozen=True)
class ExpertWeights(Generic[V, L]):
    """A mixture of experts; see `engine.models.experts.ExpertsConfig`. `router`: logits [T, experts]. `shared_gate`:
    logits [T, 1] of the shared MLP's weight; None: its weight is 1. `choice_bias`: float32 [experts], added to scores
    for the choice, not for the shares. `share_scale`: float32 [experts], a factor of each expert's shares."""

    router: L
    experts: Sequence[MlpWeights[L]]
    per_token: int
    renormalise: bool
    shared: MlpWeights[L] | None = None
    shared_gate: L | None = None
    rule: RoutingRule = PLAIN_ROUTING
    choice_bias: V | None = None
    share_scale: V | None = None


@dataclass(frozen=True)
class LayerInputs(Generic[V, L, E]):
    """Embeddings [P] of a token for each layer (Gemma 3n): of the table [V, layers P], times sqrt(P), and of the
    projection [layers P] of its embedding, over sqrt(H), normed for each layer by `norm` [P]. Their sum is divided by
    sqrt(2)."""

    table: E
    projection: L
    norm: V


@dataclass(frozen=True)
class LayerInput(Generic[V, L]):
    """The use of these in a layer. The activation of `gate`, [H to P], of the residual stream is multiplied by the
    token's embedding. `projection` of that, [P to H], normed by `norm` [H], is added to the residual stream."""

    gate: L
    projection: L
    norm: V


@dataclass(frozen=True)
class ExpertNorms(Generic[V]):
    """RMS norms [H] of a mixture whose router and experts read the residual stream, each through a norm of its own.

    router, experts: of their inputs. experts_output, shared_output: of the sum of the experts and of the shared MLP,
    before these two are added.
    """

    router: V
    experts: V
    experts_output: V
    shared_output: V


@dataclass(frozen=True)
class DeltaVectors(Generic[V]):
    """Vectors of a gated delta net, in float32; see `kernels.delta`.

    convolution: [W, C]. decay_rate: [Hv], -exp(A). step_bias: [Hv], added to the decay's gate. norm: [Dv].
    """

    convolution: V
    decay_rate: V
    step_bias: V
    norm: V


@dataclass(frozen=True)
class DeltaWeights(Generic[V, L]):
    """A gated delta net in place of attention. `gates`: beta and decay [T, 2 Hv]. `shape`: its sizes. The layer's `qkv`
    is its queries, keys, values and output gates [T, C + Hv Dv], and `output` its output projection."""

    shape: DeltaShape
    gates: L
    vectors: DeltaVectors[V]


@dataclass(frozen=True)
class LayerWeights(Generic[V, L]):
    """One layer. `qkv`: q, k and v concatenated, or what makes them. `attention_norm` and `mlp_norm` are of the inputs
    of attention and MLP, the output norms of what these add to the residual stream; None: no norm. `sinks`: float32
    [Hq], as in `kernels.reference.attend`. `attention_gate`: [T, Hq D], whose sigmoid multiplies what attention
    returns. `delta`: the gated delta net in place of attention. `expert_norms`: of a mixture that has some. `scalar`:
    factor of the residual stream after the layer. `layer_input`: of a model with `LayerInputs`. `kv_scales`: of KV in
    fp8, if the checkpoint has them."""

    attention_norm: V | None
    qkv: L | LatentWeights[V, L]
    head_norms: HeadNorms[V] | None
    output: L
    mlp_norm: V | None
    mlp: MlpWeights[L] | ExpertWeights[V, L]
    attention_output_norm: V | None = None
    mlp_output_norm: V | None = None
    sinks: V | None = None
    attention_gate: L | None = None
    delta: DeltaWeights[V, L] | None = None
    expert_norms: ExpertNorms[V] | None = None
    scalar: float = 1.0
    layer_input: LayerInput[V, L] | None = None
    kv_scales: KVScales | None = None


@dataclass(frozen=True)
class ModelWeights(Generic[V, L, E]):
    """A model packed for its backend. `head` computes logits [T, V]."""

    embedding: E
    layers: Sequence[LayerWeights[V, L]]
    final_norm: V
    head: L
    layer_inputs: LayerInputs[V, L, E] | None = None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Parameters of a forward pass besides the weights.

    windows: sliding attention window of each layer in tokens, including the query's own; None for full attention.
    cos, sin: float32 [positions, D'/2], rotary factors of every position; D' of D dimensions are rotated.
    rotary: those of each layer, if they differ between layers.
    attention_scale, attention_softcap, embedding_scale, residual_scale, activation: as in
        `engine.models.config.ModelConfig`.
    kv_places: of each layer with KV, its group and its number there, if KV is in groups.
    layer_heads: the heads of each layer, if they are not all `num_kv_heads` of `head_dim` dimensions. blocks: of these,
        where their KV is.
    kv_sources: as in `ModelConfig`.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    windows: tuple[int | None, ...]
    cos: Floats
    sin: Floats
    rotary: tuple[tuple[Floats, Floats], ...] = ()
    attention_scale: float | None = None
    attention_softcap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    activation: Literal["silu", "gelu_tanh", "clamped_swiglu"] = "silu"
    kv_places: tuple[tuple[int, int], ...] = ()
    layer_heads: tuple[HeadShape, ...] = ()
    blocks: MixedBlocks | None = None
    kv_sources: tuple[int, ...] = ()

    def heads_of(self, layer: int) -> HeadShape:
        """The heads of a layer."""
        return self.layer_heads[layer] if self.layer_heads else HeadShape(self.num_kv_heads, self.head_dim)


class Packer(Protocol[V_co, L_co, E]):
    """A backend as seen by the model loader. Arrays passed to it may be views of a file and are not retained."""

    def describe(self) -> dict[str, str | int | float]: ...

    def takes_blocks(self, format: str, in_features: int) -> bool:
        """Whether weights of that format and width can be packed directly; otherwise they are passed dense."""
        ...

    def vector(self, numbers: Array) -> V_co:
        """A norm's weight [n] in the compute dtype."""
        ...

    def wide_vector(self, numbers: Array) -> V_co:
        """Numbers of any shape in float32."""
        ...

    def pack_parts(self, parts: Sequence[StoredWeight], bias: Array | None) -> L_co:
        """At most three weights concatenated along their outputs, each of a supported format."""
        ...

    def pack_gate_up(self, gate: StoredWeight, up: StoredWeight, bias: Array | None) -> L_co:
        """Gate and up projection of an MLP, for this backend's forward pass only. `bias`: the gates', then the ups'."""
        ...

    def pack_embedding(self, weight: StoredWeight) -> E: ...

    def tied_head(self, embedding: E) -> L_co:
        """The product with the embedding table, for a tied head. The two may share memory."""
        ...


@runtime_checkable
class ExpertStacker(Protocol):
    """A `Packer` whose backend computes the experts of a layer together."""

    def stack_experts(self, experts: Sequence[MlpWeights[L]]) -> Sequence[MlpWeights[L]]:
        """The experts with their weights next to one another in memory. Those that are passed may be freed."""
        ...


@runtime_checkable
class HeadStacker(Protocol):
    """A `Packer` whose backend computes the products of all heads of a layer together."""

    def stack_heads(self, linears: Sequence[L]) -> Sequence[L]:
        """Products of equal shapes, one for each head, with their weights next to one another in memory. Those that are
        passed may be freed."""
        ...
