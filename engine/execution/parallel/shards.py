"""How a model is cut among ranks: the layers of each stage, the config of a rank's part, and its part of each tensor.

Within a stage each layer is cut as in Megatron-LM (Shoeybi et al., arXiv 1909.08053): the rows of what makes heads and
inner MLP dimensions, the columns of what reads them, whose products are partial sums. The embedding is cut by
vocabulary over the ranks of the first stage, the head over those of the last: a step in one stage does not wait for the
ranks of another. No torch.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.kv_groups import KVGroups
from engine.models.layout import EMBEDDING, HEAD, LAYER_EMBEDDING, LAYER_PROJECTION, Shape
from kernels.arrays import Array, Ints
from kernels.layout import HeadShape

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_MLP = re.compile(r"mlp\.(?:experts\.\d+\.|shared_expert\.)?(gate|up|down)_proj\.(weight|bias)")

_BY_HEAD = ("q_proj.weight", "q_proj.bias", "gate_proj.weight", "gate_proj.bias", "sinks", "q_b_proj.weight")
_BY_KV_HEAD = ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias")
_BY_VALUE_HEAD = ("in_proj_z.weight", "in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias")
_BY_CHANNEL = ("in_proj_qkv.weight", "conv1d.weight")


@dataclass(frozen=True, slots=True)
class ParallelSizes:
    """`tensor`: ranks that compute each layer together. `stages`: of the layers, each on ranks of its own."""

    tensor: int = 1
    stages: int = 1

    @property
    def ranks(self) -> int:
        return self.tensor * self.stages


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a rank. Ranks of a stage are neighbours."""

    sizes: ParallelSizes
    rank: int

    @property
    def part(self) -> int:
        """The rank's number among those of its stage."""
        return self.rank % self.sizes.tensor

    @property
    def stage(self) -> int:
        return self.rank // self.sizes.tensor

    @property
    def is_last(self) -> bool:
        """Whether its stage is the last one."""
        return self.stage == self.sizes.stages - 1

    @property
    def name(self) -> str:
        """For operators."""
        return f"rank {self.rank} of {self.sizes.ranks} (part {self.part} of stage {self.stage})"

    def layers(self, num_layers: int) -> range:
        """The layers of its stage."""
        return _share(num_layers, self.stage, self.sizes.stages)

    def embedding_rows(self, vocab_size: int) -> range:
        """The token ids whose rows of the embedding it has: those of its part in the first stage, none in others."""
        return self._of_stage(vocab_size, 0)

    def head_rows(self, vocab_size: int) -> range:
        """The token ids whose logits it computes: those of its part in the last stage, none in others."""
        return self._of_stage(vocab_size, self.sizes.stages - 1)

    def _of_stage(self, vocab_size: int, stage: int) -> range:
        return _share(vocab_size, self.part, self.sizes.tensor) if self.stage == stage else range(0)

    def layer_vocabulary(self, vocab_size: int) -> range:
        """The token ids whose rows of the table of layers' embeddings it has, for the layers of its stage."""
        return _share(vocab_size, self.part, self.sizes.tensor)


def places(sizes: ParallelSizes) -> list[Place]:
    """The places of all ranks, in order."""
    return [Place(sizes, rank) for rank in range(sizes.ranks)]


def _share(total: int, number: int, of: int) -> range:
    return range(number * total // of, (number + 1) * total // of)


def rank_config(config: ModelConfig, place: Place) -> ModelConfig:
    """The config of a rank's part: its heads, inner dimensions and layers. The vocabulary is the whole model's.

    Raises:
        UnsupportedCheckpoint: the model cannot be cut so; the message names the field.
    """
    return _of_stage(_cut(config, place.sizes.tensor), place)


def _cut(config: ModelConfig, size: int) -> ModelConfig:
    if size == 1:
        return config
    linear, experts = config.linear, config.experts
    if linear is not None:
        linear = replace(
            linear,
            key_heads=_shared_heads("linear_num_key_heads", linear.key_heads, size),
            value_heads=_divided("linear_num_value_heads", linear.value_heads, size),
        )
    if experts is not None:
        shared = experts.shared_size
        experts = replace(
            experts,
            size=_divided("size of experts", experts.size, size),
            shared_size=_divided("size of the shared expert", shared, size) if shared else 0,
        )
    has_dense = not all(map(config.is_sparse, range(config.num_layers)))
    sizes = config.layer_mlp_sizes
    inner = config.intermediate_size
    return replace(
        config,
        num_heads=_divided("num_heads", config.num_heads, size),
        num_kv_heads=_shared_heads("num_kv_heads", config.num_kv_heads, size),
        layer_heads=tuple(
            heads._replace(kv_heads=_shared_heads("layer_heads", heads.kv_heads, size)) for heads in config.layer_heads
        ),
        intermediate_size=_divided("intermediate_size", inner, size) if has_dense and not sizes else inner,
        layer_mlp_sizes=tuple(_divided("layer_mlp_sizes", each, size) for each in sizes),
        experts=experts,
        linear=linear,
    )


def _divided(field: str, value: int, size: int) -> int:
    if value % size:
        raise UnsupportedCheckpoint(f"tensor_parallel: {size} does not divide {field} {value}; use a divisor of it")
    return value // size


def _shared_heads(field: str, count: int, size: int) -> int:
    """Heads of a rank, of heads that others share. Where there are more ranks than heads, several have the same one."""
    if count % size and size % count:
        raise UnsupportedCheckpoint(
            f"tensor_parallel: {size} neither divides {field} {count} nor is a multiple of it; use a size that does"
        )
    return max(1, count // size)


def _of_stage(config: ModelConfig, place: Place) -> ModelConfig:
    stages, layers = place.sizes.stages, place.layers(config.num_layers)
    if stages == 1:
        return config
    if stages > config.num_layers:
        raise UnsupportedCheckpoint(f"pipeline_parallel: {stages} stages of {config.num_layers} layers; use fewer")
    for layer in layers if config.kv_sources else ():
        if config.kv_sources[layer] not in layers:
            source = config.kv_sources[layer]
            raise UnsupportedCheckpoint(
                f"pipeline_parallel: layer {layer} attends to the KV of layer {source}, which {stages} stages put in "
                "another one; use tensor_parallel, or fewer stages"
            )
    if config.linear is not None and all(map(config.is_linear, layers)):
        raise UnsupportedCheckpoint(
            f"pipeline_parallel: of {stages} stages, stage {place.stage} has no layer with attention; use fewer"
        )
    return config.of_layers(layers)


def stage_groups(config: ModelConfig, groups: KVGroups, place: Place) -> KVGroups:
    """The groups of KV of a rank's layers, of `groups` of all layers of the model `config`. Their numbers stay, so that
    the block tables of all stages are the same."""
    if place.sizes.stages == 1:
        return groups
    layers = place.layers(config.num_layers)
    with_kv = [layer for layer in range(config.num_layers) if not config.is_linear(layer) and config.has_kv(layer)]
    filled = [0] * len(groups.windows)
    kept = []
    for layer, (group, _) in zip(with_kv, groups.places, strict=True):
        if layer in layers:
            kept.append((group, filled[group]))
            filled[group] += 1
    return KVGroups(groups.windows, max(1, *filled), tuple(kept))


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's part of a tensor: the numbers at `indices` of each of its axes; None: all of them. `is_once`: a term of
    a sum over ranks, of which one rank has it and the others have zeros."""

    indices: tuple[Ints | None, ...] = ()
    is_once: bool = False

    def of(self, tensor: Array, place: Place) -> Array:
        """The part. A view of the tensor where it is whole or some neighbouring rows of it."""
        if self.is_once:
            return tensor if place.part == 0 else np.zeros_like(tensor)
        for axis, indices in enumerate(self.indices):
            if indices is not None:
                tensor = _taken(tensor, axis, indices)
        return tensor


WHOLE = Cut()


def _taken(tensor: Array, axis: int, indices: Ints) -> Array:
    """Neighbours are not copied where they are rows."""
    if len(indices) and indices[-1] - indices[0] + 1 == len(indices):
        span = slice(int(indices[0]), int(indices[-1]) + 1)
        return tensor[span] if axis == 0 else np.ascontiguousarray(tensor[:, span])
    return np.ascontiguousarray(np.take(tensor, indices, axis))


def cut_of(config: ModelConfig, place: Place, name: str, shape: Shape) -> tuple[str, Cut] | None:
    """A rank's part of a tensor of the whole model `config`, and its name there; None: the rank has none of it."""
    if name in (EMBEDDING, HEAD):
        rows = place.embedding_rows(config.vocab_size) if name == EMBEDDING else place.head_rows(config.vocab_size)
        if config.tie_embeddings:  # the embedding is the head
            rows = rows or place.head_rows(config.vocab_size)
        return name, Cut((_indices(rows),))
    if name in (LAYER_EMBEDDING, LAYER_PROJECTION):
        size, layers = config.layer_input_size, place.layers(config.num_layers)
        of_layers = _indices(range(layers.start * size, layers.stop * size))
        of_tokens = _indices(place.layer_vocabulary(config.vocab_size))
        return name, Cut((of_tokens, of_layers) if name == LAYER_EMBEDDING else (of_layers,))
    match = _LAYER.fullmatch(name)
    if match is None:
        return name, WHOLE
    layer, within = int(match[1]), match[2]
    layers = place.layers(config.num_layers)
    if layer not in layers:
        return None
    cut = WHOLE if place.sizes.tensor == 1 else _layer_cut(config, place, layer, within, shape)
    return f"model.layers.{layer - layers.start}.{within}", cut


def _layer_cut(config: ModelConfig, place: Place, layer: int, name: str, shape: Shape) -> Cut:
    size, part = place.sizes.tensor, place.part
    if (mlp := _MLP.fullmatch(name)) is not None:
        if mlp[1] != "down":
            return Cut((_indices(_share(shape[0], part, size)),))
        return Cut(is_once=True) if mlp[2] == "bias" else Cut((None, _indices(_share(shape[1], part, size))))
    module, _, kind = name.partition(".")
    if module == "self_attn":
        return _attention_cut(config, place, layer, kind, shape)
    if module == "linear_attn":
        return _delta_cut(config, place, kind, shape)
    return WHOLE


def _attention_cut(config: ModelConfig, place: Place, layer: int, kind: str, shape: Shape) -> Cut:
    size, part, heads = place.sizes.tensor, place.part, config.num_heads
    mine = _indices(_share(heads, part, size))
    is_latent, is_whole = config.latent is not None, config.qk_norm_whole
    if kind in _BY_HEAD or (kind == "kv_b_proj.weight" and is_latent) or (kind == "q_norm.weight" and is_whole):
        return Cut((_of_heads(mine, shape[0] // heads),))
    if kind in _BY_KV_HEAD or (kind == "k_norm.weight" and is_whole):
        of_layer = config.heads_of(layer)
        return Cut((_of_heads(kv_heads_of(of_layer, place), shape[0] // of_layer.kv_heads),))
    if kind == "o_proj.weight":
        return Cut((None, _of_heads(mine, shape[1] // heads)))
    return Cut(is_once=True) if kind == "o_proj.bias" else WHOLE


def kv_heads_of(heads: HeadShape, place: Place) -> Ints:
    """The KV heads of a rank, of those of a layer."""
    size, part = place.sizes.tensor, place.part
    return _shared(heads.kv_heads, part, size)


def _shared(heads: int, part: int, size: int) -> Ints:
    """A rank's heads, of heads that others share."""
    return _indices(_share(heads, part, size) if heads % size == 0 else [part * heads // size])


def _delta_cut(config: ModelConfig, place: Place, kind: str, shape: Shape) -> Cut:
    values = _value_heads(config, place)
    linear = config.linear
    assert linear is not None, "a gated delta net without its sizes"
    if kind in _BY_VALUE_HEAD:
        return Cut((_of_heads(values, shape[0] // linear.value_heads),))
    if kind == "out_proj.weight":
        return Cut((None, _of_heads(values, linear.value_dim)))
    if kind not in _BY_CHANNEL:
        return WHOLE
    keys = _of_heads(_shared(linear.key_heads, place.part, place.sizes.tensor), linear.key_dim)
    all_keys = linear.key_heads * linear.key_dim
    channels = (keys, all_keys + keys, 2 * all_keys + _of_heads(values, linear.value_dim))
    return Cut((np.concatenate(channels),))


def _value_heads(config: ModelConfig, place: Place) -> Ints:
    """The value heads of a rank's key heads, in the order of its own part."""
    linear = config.linear
    assert linear is not None, "a gated delta net without its sizes"
    of_key, size = linear.value_heads // linear.key_heads, place.sizes.tensor
    keys = _shared(linear.key_heads, place.part, size)
    if linear.tiled:
        alike = max(1, size // linear.key_heads)  # ranks with the same key head
        of_rank = _indices(_share(of_key, place.part % alike, alike))
        rows: Ints = (of_rank[:, None] * linear.key_heads + keys).ravel()
        return rows
    return _indices(_share(linear.value_heads, place.part, size))


def _of_heads(heads: Ints, rows: int) -> Ints:
    """The rows of some heads, each of which has as many."""
    indices: Ints = (heads[:, None] * rows + np.arange(rows)).ravel()
    return indices


def _indices(values: Sequence[int] | range) -> Ints:
    return np.array(values, dtype=np.int64)


def product_rows(config: ModelConfig, place: Place, names: Iterator[tuple[str, Shape]]) -> Ints:
    """The rows of a rank in a product that computes several matrices at once, which are whole there, in order."""
    rows, first = [np.empty(0, np.int64)], 0
    for name, shape in names:
        part = cut_of(config, place, name, shape)
        assert part is not None, f"{name} is of another stage"
        indices = part[1].indices[0] if part[1].indices else None
        rows.append(first + (np.arange(shape[0]) if indices is None else indices))
        first += shape[0]
    return np.concatenate(rows)
