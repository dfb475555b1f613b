"""The description of an architecture of GGUF files."""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.checkpoints.json_keys import Keys
from engine.checkpoints.row_order import HeadSplit
from engine.models.config import ModelConfig, RopeConfig

Fields = dict[str, Any]
"""Fields of a `ModelConfig` by name."""
RopeRows = Literal["half split", "interleaved"]


@dataclass(frozen=True, slots=True)
class Dims:
    """Values that every architecture states. tensors: names of the file's tensors."""

    hidden_size: int
    num_layers: int
    num_heads: int
    head_dim: int
    rope: RopeConfig
    tensors: Container[str]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One value of `general.architecture`.

    family: the name in a `ModelConfig`. fields: those of the `ModelConfig` that differ from Llama's. understood: keys
    besides those of every architecture. defaults: of keys that the files may lack. names: Llama's names of a layer's
    tensors, by GGUF's, where they differ. fused: tensors that hold the rows of several of Llama's, one after the other;
    splits: those that hold them by heads. sparse_names: as `names`, of layers with experts. whole_names: the layout's
    names of tensors by GGUF's, with their suffix. by_layer: keys that may have a list with a value for each layer;
    common fields have the first. rope_rows: the order of the rows of q and k; latent attention has its own.
    draft_layers: the last `nextn_predict_layers` layers draft (multi-token prediction) and are not loaded.
    """

    family: str
    fields: Callable[[Keys, Dims], Fields]
    understood: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    splits: Mapping[str, Callable[[ModelConfig], HeadSplit]] = field(default_factory=dict)
    sparse_names: Mapping[str, str] = field(default_factory=dict)
    whole_names: Mapping[str, str] = field(default_factory=dict)
    by_layer: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    rope_rows: RopeRows = "half split"
    latent: bool = False
    draft_layers: bool = False
