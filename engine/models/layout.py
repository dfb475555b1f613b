"""Names and shapes of a model's weights, against which every checkpoint format is checked."""

from collections.abc import Iterator, Mapping

from engine.models.config import ModelConfig, UnsupportedCheckpoint

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"

DRAFT = "draft.safetensors"
"""File next to the weights of a model trained for drafting. It holds the token ids that the model samples from, int32
[F]."""
FREQUENT_TOKENS = "frequent_tokens"


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Every weight of a model by its Hugging Face name. Matrices are [out_features, in_features].

    A tied head is the embedding and is not listed.
    """
    yield EMBEDDING, (config.vocab_size, config.hidden_size)
    layer = _layer_tensors(config)
    for index in range(config.num_layers):
        for name, shape in layer.items():
            yield f"model.layers.{index}.{name}", shape
    yield FINAL_NORM, (config.hidden_size,)
    if not config.tie_embeddings:
        yield HEAD, (config.vocab_size, config.hidden_size)


def _layer_tensors(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        **{f"self_attn.{name}.weight": (size, hidden) for name, size in rows.items()},
        "self_attn.o_proj.weight": (hidden, q_rows),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        shapes.update({f"self_attn.{name}.bias": (size,) for name, size in rows.items()})
    if config.o_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if config.mlp_bias:
        shapes.update({"mlp.gate_proj.bias": (inner,), "mlp.up_proj.bias": (inner,), "mlp.down_proj.bias": (hidden,)})
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


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
