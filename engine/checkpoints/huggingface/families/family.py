"""The description of a model family: how its config.json and its tensor names differ from Llama's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.checkpoints.huggingface.rope import rope_from_config
from engine.checkpoints.json_keys import Keys
from engine.models.config import Activation, ModelConfig, RopeConfig
from engine.models.experts import MAX_EXPERTS
from kernels.arrays import Ints


@dataclass(frozen=True, slots=True)
class Dims:
    """The sizes that every family's config.json has."""

    hidden_size: int
    num_layers: int
    num_heads: int
    head_dim: int


Fields = dict[str, Any]
"""Fields of a `ModelConfig` by name."""

Splits = Mapping[str, Mapping[str, Ints]]
"""Modules of a layer that hold the rows of several of Llama's, or of the layout's: by their names those modules, and
which rows are theirs, int64. A row belongs to one of them."""


def no_splits(config: ModelConfig) -> Splits:
    return {}


@dataclass(frozen=True, slots=True)
class Stacked:
    """A tensor with one tensor, or several, of each expert: [experts, ...].

    tensors: of an expert, their rows one after the other or, if `interleaved`, in turn. transposed: matrices are
        [in_features, out_features]; None: they are if their shape fits no other way.
    """

    tensors: tuple[str, ...]
    transposed: bool | None = False
    interleaved: bool = False

    def rows(self, place: int, rows: int) -> slice:
        """Those of the tensor at `place`, which has `rows` of them."""
        return slice(place, None, len(self.tensors)) if self.interleaved else slice(place * rows, (place + 1) * rows)


@dataclass(frozen=True, slots=True)
class Family:
    """One `model_type` of config.json.

    fields: the fields of the `ModelConfig` that differ from Llama's, read from the keys.
    understood: keys that the family reads and that other families refuse.
    defaults: values of keys that a file may leave out, as in transformers' config class.
    names: for modules of a layer with other names than Llama's, a pattern (`re.fullmatch`) and Llama's name, as a
        replacement template.
    sparse_names: the same, for layers with experts.
    fused: modules whose rows are those of several of Llama's, one after the other.
    splits: modules whose rows are those of several others, in any order.
    stacked: tensors of all experts by their names within a layer.
    interleaved_rope: rope rotates dimensions 2i and 2i + 1 of a head together, not i and i + D'/2.
    text_types: for a multimodal model, values of `text_config.model_type` that are served: its text model.
    prefixes: beginnings of tensor names, and those of Llama's names.
    ignored: patterns of tensor names (`re.match`) that do not belong to the text model.
    draft_layers: layers past the last one draft (multi-token prediction) and are not loaded.
    activations: accepted values of `activation_key`, and what they are in a `ModelConfig`.
    """

    model_type: str
    architecture: str
    fields: Callable[[Keys, Dims], Fields]
    understood: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    sparse_names: Mapping[str, str] = field(default_factory=dict)
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    splits: Callable[[ModelConfig], Splits] = no_splits
    stacked: Mapping[str, Stacked] = field(default_factory=dict)
    interleaved_rope: bool = False
    text_types: frozenset[str] = frozenset()
    prefixes: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    draft_layers: bool = False
    activation_key: str = "hidden_act"
    activations: Mapping[str, Activation] = field(default_factory=lambda: {"silu": "silu"})


def rope_fields(keys: Keys, dims: Dims) -> Fields:
    """One rope for all layers."""
    rope, max_position = rope_from_config(keys, dims.head_dim)
    return {"rope": rope, "max_position": max_position}


def same_window(keys: Keys, dims: Dims, absent: int | None = None) -> Fields:
    """`sliding_window` in every layer; null for full attention. `absent`: its value if the file lacks the key."""
    return {"windows": (keys.optional_size("sliding_window", absent=absent),) * dims.num_layers}


def layer_types(keys: Keys, dims: Dims) -> list[bool] | None:
    """Whether each layer has a sliding window, by `layer_types`; None if the file does not have the key."""
    types = keys.values.get("layer_types")
    if types is None:
        return None
    known = {"full_attention": False, "sliding_attention": True}
    if not isinstance(types, list) or len(types) != dims.num_layers:
        raise keys.refuse("layer_types", f"not a list of {dims.num_layers} names")
    for name in types:
        if not isinstance(name, str) or name not in known:
            raise keys.refuse("layer_types", f"{name!r:.80} is not understood")
    return [known[name] for name in types]


def windows_by_type(keys: Keys, slides: list[bool], absent: int | None = 4096) -> tuple[int | None, ...]:
    """`sliding_window` in the layers that slide. `absent`: its value if the file lacks the key.

    Raises:
        UnsupportedCheckpoint: a layer slides, and the window is null.
    """
    window = keys.optional_size("sliding_window", absent=absent)
    if window is None and any(slides):
        raise keys.refuse("sliding_window", "null, but layers slide")
    return tuple(window if slide else None for slide in slides)


def ropes_by_type(
    keys: Keys,
    dims: Dims,
    slides: list[bool],
    full_theta: float,
    sliding_theta_key: str,
    sliding_theta: float,
    full_head_dim: int | None = None,
) -> Fields:
    """The ropes of sliding and of full layers. `full_head_dim`: head size of the latter, if it is another.

    transformers 5 writes `rope_parameters` with one object for each layer type. Before, `rope_theta` and `rope_scaling`
    belonged to full layers, and `sliding_theta_key` was the base of sliding ones, which are never scaled.
    """
    nested = keys.values.get("rope_parameters")
    if nested is None:
        full = Keys({**keys.values, "rope_theta": keys.number("rope_theta", full_theta)}, keys.prefix)
        theta = keys.number(sliding_theta_key, sliding_theta)
        sliding = Keys({"rope_theta": theta, **_position(keys)}, keys.prefix)
    else:
        full = _of_type(keys, "full_attention", full_theta)
        sliding = _of_type(keys, "sliding_attention", sliding_theta)
    full_rope, max_position = rope_from_config(full, full_head_dim or dims.head_dim)
    sliding_rope, _ = rope_from_config(sliding, dims.head_dim)
    ropes: tuple[RopeConfig, ...] = tuple(sliding_rope if slide else full_rope for slide in slides)
    return {"rope": full_rope, "max_position": max_position, "layer_ropes": ropes if any(slides) else ()}


def _of_type(keys: Keys, kind: str, theta: float) -> Keys:
    nested = keys.values["rope_parameters"]
    values = nested.get(kind, {}) if isinstance(nested, dict) else None
    if not isinstance(values, dict) or set(nested) - {"full_attention", "sliding_attention"}:
        raise keys.refuse("rope_parameters", "is not an object with full_attention and sliding_attention")
    return Keys({"rope_theta": theta, **_position(keys), "rope_parameters": values}, keys.prefix)


def _position(keys: Keys) -> dict[str, Any]:
    names = ("max_position_embeddings", "original_max_position_embeddings")
    return {name: keys.values[name] for name in names if name in keys.values}


EXPERT_COUNT_KEYS = frozenset({"num_experts", "num_local_experts"})


def expert_count(keys: Keys, default: int) -> int:
    """The number of experts, which files call by either of two names.

    Raises:
        UnsupportedCheckpoint: it is not in 1..MAX_EXPERTS, or the two differ.
    """
    counts = {name: keys.size(name, maximum=MAX_EXPERTS) for name in sorted(EXPERT_COUNT_KEYS) if name in keys.values}
    if len(set(counts.values())) > 1:
        raise keys.refuse("num_experts", f"{counts['num_experts']}, but num_local_experts is another number")
    return next(iter(counts.values()), default)
