"""Names and shapes of a model's weights, against which every checkpoint format is checked."""

from collections.abc import Iterator, Mapping

from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.latent import LatentConfig

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"

LAYER_EMBEDDING = "model.embed_tokens_per_layer.weight"
LAYER_PROJECTION = "model.per_layer_model_projection.weight"
LAYER_INPUT_NORM = "model.per_layer_projection_norm.weight"

DRAFT = "draft.safetensors"
"""File next to the weights of a model trained for drafting. It holds the token ids that the model samples from, int32
[F]."""
FREQUENT_TOKENS = "frequent_tokens"

_WIDE = (
    ".e_score_correction_bias",
    ".self_attn.sinks",
    ".linear_attn.A_log",
    ".linear_attn.dt_bias",
    ".mlp.gate.scale",
    ".mlp.gate.per_expert_scale",
    ".layer_scalar",
)
_GATES = (".linear_attn.in_proj_b.weight", ".linear_attn.in_proj_a.weight")


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Every weight of a model by its Hugging Face name. Matrices are [out_features, in_features].

    A tied head is the embedding and is not listed.
    """
    yield EMBEDDING, (config.vocab_size, config.hidden_size)
    if config.layer_input_size:
        width = config.num_layers * config.layer_input_size
        yield LAYER_EMBEDDING, (config.vocab_size, width)
        yield LAYER_PROJECTION, (width, config.hidden_size)
        yield LAYER_INPUT_NORM, (config.layer_input_size,)
    for index in range(config.num_layers):
        for name, shape in layer_tensors(config, index):
            yield f"model.layers.{index}.{name}", shape
    yield FINAL_NORM, (config.hidden_size,)
    if not config.tie_embeddings:
        yield HEAD, (config.vocab_size, config.hidden_size)


def layer_tensors(config: ModelConfig, index: int) -> Iterator[tuple[str, Shape]]:
    """The weights of a layer by their names within it.

    Names are those of Hugging Face's Llama. It has none for the norms of a branch's output: here they are
    `attention_output_norm` and `mlp_output_norm`.
    """
    hidden = (config.hidden_size,)
    if config.pre_norm:
        yield "input_layernorm.weight", hidden
        yield "post_attention_layernorm.weight", hidden
    if config.branch_norm:
        yield "attention_output_norm.weight", hidden
        yield "mlp_output_norm.weight", hidden
    if config.is_linear(index):
        yield from _linear_tensors(config)
    else:
        latent = config.latent
        yield from _attention_tensors(config, index) if latent is None else _latent_tensors(config, latent)
    if config.layer_input_size:
        yield "per_layer_input_gate.weight", (config.layer_input_size, config.hidden_size)
        yield "per_layer_projection.weight", (config.hidden_size, config.layer_input_size)
        yield "post_per_layer_input_norm.weight", hidden
    if config.layer_scalars:
        yield "layer_scalar", (1,)
    if config.is_sparse(index):
        yield from _expert_tensors(config)
    else:
        yield from _mlp_tensors("mlp", config.hidden_size, config.mlp_size(index), config.mlp_bias)


def _attention_tensors(config: ModelConfig, index: int) -> Iterator[tuple[str, Shape]]:
    heads = config.heads_of(index)
    q_rows, kv_rows = config.num_heads * heads.dim, heads.kv_heads * heads.dim
    for name, rows in (("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows)):
        if (name == "v_proj" and not heads.has_values) or (name != "q_proj" and not config.has_kv(index)):
            continue
        yield f"self_attn.{name}.weight", (rows, config.hidden_size)
        if config.qkv_bias:
            yield f"self_attn.{name}.bias", (rows,)
    if config.attention_sinks:
        yield "self_attn.sinks", (config.num_heads,)
    if config.attention_gate:
        yield "self_attn.gate_proj.weight", (q_rows, config.hidden_size)
        if config.qkv_bias:
            yield "self_attn.gate_proj.bias", (q_rows,)
    yield "self_attn.o_proj.weight", (config.hidden_size, q_rows)
    if config.o_bias:
        yield "self_attn.o_proj.bias", (config.hidden_size,)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (q_rows if config.qk_norm_whole else heads.dim,)
    if config.qk_norm and config.has_kv(index):
        yield "self_attn.k_norm.weight", (kv_rows if config.qk_norm_whole else heads.dim,)


def _latent_tensors(config: ModelConfig, latent: LatentConfig) -> Iterator[tuple[str, Shape]]:
    """Of a query's head the rotated dimensions are the first."""
    hidden, queries = config.hidden_size, config.num_heads * config.head_dim
    if latent.query_rank is None:
        yield "self_attn.q_proj.weight", (queries, hidden)
    else:
        yield "self_attn.q_a_proj.weight", (latent.query_rank, hidden)
        if config.qkv_bias:
            yield "self_attn.q_a_proj.bias", (latent.query_rank,)
        yield "self_attn.q_a_layernorm.weight", (latent.query_rank,)
        yield "self_attn.q_b_proj.weight", (queries, latent.query_rank)
    yield "self_attn.kv_a_proj_with_mqa.weight", (latent.rank + latent.rotated, hidden)
    if config.qkv_bias:
        yield "self_attn.kv_a_proj_with_mqa.bias", (latent.rank + latent.rotated,)
    yield "self_attn.kv_a_layernorm.weight", (latent.rank,)
    of_head = config.head_dim - latent.rotated + latent.value_dim
    yield "self_attn.kv_b_proj.weight", (config.num_heads * of_head, latent.rank)
    yield "self_attn.o_proj.weight", (hidden, config.num_heads * latent.value_dim)
    if config.o_bias:
        yield "self_attn.o_proj.bias", (hidden,)


def _linear_tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    linear, hidden = config.linear, config.hidden_size
    assert linear is not None, "a linear layer without its sizes"
    shape = linear.shape
    yield "linear_attn.in_proj_qkv.weight", (shape.channels, hidden)
    yield "linear_attn.in_proj_z.weight", (shape.values, hidden)
    yield "linear_attn.in_proj_b.weight", (linear.value_heads, hidden)
    yield "linear_attn.in_proj_a.weight", (linear.value_heads, hidden)
    yield "linear_attn.conv1d.weight", (shape.channels, 1, linear.taps)
    yield "linear_attn.A_log", (linear.value_heads,)
    yield "linear_attn.dt_bias", (linear.value_heads,)
    yield "linear_attn.norm.weight", (linear.value_dim,)
    yield "linear_attn.out_proj.weight", (hidden, shape.values)


def _mlp_tensors(prefix: str, hidden: int, inner: int, bias: bool) -> Iterator[tuple[str, Shape]]:
    for name, shape in (("gate_proj", (inner, hidden)), ("up_proj", (inner, hidden)), ("down_proj", (hidden, inner))):
        yield f"{prefix}.{name}.weight", shape
        if bias:
            yield f"{prefix}.{name}.bias", shape[:1]


def _expert_tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    experts, hidden = config.experts, config.hidden_size
    assert experts is not None, "a sparse layer without experts"
    yield "mlp.gate.weight", (experts.count, hidden)
    if experts.bias:
        yield "mlp.gate.bias", (experts.count,)
    if experts.choice_bias:
        yield "mlp.gate.e_score_correction_bias", (experts.count,)
    if experts.own_norms:
        yield "mlp.gate.scale", (hidden,)
        for name in ("experts_norm", "experts_output_norm", "shared_output_norm"):
            yield f"mlp.{name}.weight", (hidden,)
    if experts.share_scale:
        yield "mlp.gate.per_expert_scale", (experts.count,)
    for expert in range(experts.count):
        yield from _mlp_tensors(f"mlp.experts.{expert}", hidden, experts.size, experts.bias)
    if experts.shared_size:
        yield from _mlp_tensors("mlp.shared_expert", hidden, experts.shared_size, bias=False)
        if experts.shared_gate:
            yield "mlp.shared_expert_gate.weight", (1, hidden)


def fused_modules(config: ModelConfig, index: int) -> dict[str, tuple[str, ...]]:
    """The products of a layer by name, and the modules that each computes at once."""
    groups: dict[str, tuple[str, ...]] = {"output": ("self_attn.o_proj",)}
    if config.latent is None:
        modules = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        groups["qkv"] = modules[: 1 if not config.has_kv(index) else 2 + config.heads_of(index).has_values]
    else:
        has_rank = config.latent.query_rank is not None
        groups |= {"query_down": ("self_attn.q_a_proj",)} if has_rank else {}
        groups["query_up"] = ("self_attn.q_b_proj" if has_rank else "self_attn.q_proj",)
        groups["down"] = ("self_attn.kv_a_proj_with_mqa",)
    if config.attention_gate:
        groups["attention_gate"] = ("self_attn.gate_proj",)
    if config.is_linear(index):
        groups = {
            "qkv": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
            "gates": ("linear_attn.in_proj_b", "linear_attn.in_proj_a"),
            "output": ("linear_attn.out_proj",),
        }
    if config.layer_input_size:
        groups |= {"input_gate": ("per_layer_input_gate",), "input_projection": ("per_layer_projection",)}
    experts = config.experts
    if experts is None or not config.is_sparse(index):
        return groups | _mlp_modules("mlp")
    groups["mlp.router"] = ("mlp.gate",)
    for expert in range(experts.count):
        groups |= _mlp_modules(f"mlp.experts.{expert}")
    if experts.shared_size:
        groups |= _mlp_modules("mlp.shared_expert")
        if experts.shared_gate:
            groups["mlp.shared_gate"] = ("mlp.shared_expert_gate",)
    return groups


def _mlp_modules(prefix: str) -> dict[str, tuple[str, ...]]:
    return {
        f"{prefix}.gate_up": (f"{prefix}.gate_proj", f"{prefix}.up_proj"),
        f"{prefix}.down": (f"{prefix}.down_proj",),
    }


def is_routing(name: str) -> bool:
    """Whether a weight decides on the experts of a token, or on their shares, or on what a recurrent state forgets."""
    return name.endswith((".mlp.gate.weight", ".mlp.shared_expert_gate.weight", *_GATES))


def is_by_head(name: str) -> bool:
    """Whether a weight is of latent attention's heads, each of which is packed alone, and one part of it turned: in the
    compute dtype, whatever the format of the others."""
    return name.endswith(".self_attn.kv_b_proj.weight")


def is_wide(name: str) -> bool:
    """Whether a weight is float32 in every compute dtype."""
    return name.endswith(_WIDE)


def check_tensors(config: ModelConfig, found: Mapping[str, Shape]) -> None:
    """Compare a file's tensors with those of the model.

    Raises:
        UnsupportedCheckpoint: a tensor is missing, unknown or of another shape; the message names it.
    """
    understood = set()
    # Stops at the first that is missing: a config that claims many layers costs no more than the file has tensors.
    for name, shape in expected_tensors(config):
        if name not in found:
            raise UnsupportedCheckpoint(f"tensor {name} is missing")
        if found[name] != shape:
            raise UnsupportedCheckpoint(f"tensor {name} has shape {list(found[name])}, not {list(shape)}")
        understood.add(name)
    for name in found:
        if name not in understood:
            raise UnsupportedCheckpoint(f"tensor {name} is not understood")
