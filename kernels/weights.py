"""Weights on their way from a checkpoint to a backend, and what a backend makes of them.

V is what a backend keeps vectors in, L a matrix that it has made ready, E a table of embeddings. Letters in shapes are
those of `kernels.ops`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kernels.arrays import Array, Floats

V = TypeVar("V")
L = TypeVar("L")
E = TypeVar("E")
V_co = TypeVar("V_co", covariant=True)
L_co = TypeVar("L_co", covariant=True)

DENSE = "dense"
"""Numbers as they are, in the compute dtype: the format of a stored weight that every backend takes."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight [out_features, in_features] on its way from a checkpoint to a backend.

    format: "dense", with `rows` [out_features, in_features] in the compute dtype; or "int8" or "int4", with the same
        rows, which the backend is to keep in so many bits; or a GGUF block format by its lower-case name ("q4_0",
        "q6_k", ...), with `rows` uint8 [out_features, row bytes], the blocks as they are stored.
    """

    format: str
    rows: Array
    out_features: int
    in_features: int

    @classmethod
    def dense(cls, rows: Array) -> "StoredWeight":
        out_features, in_features = rows.shape
        return cls(DENSE, rows, out_features, in_features)


@dataclass(frozen=True)
class HeadNorms(Generic[V]):
    """RMS norms of each query head and each key head before they are rotated: weights [D]."""

    query: V
    key: V
    eps: float


@dataclass(frozen=True)
class LayerWeights(Generic[V, L]):
    """One layer. `qkv` is q, k and v one below the other; `gate_up` is what `Packer.pack_gate_up` makes of the two."""

    attention_norm: V
    qkv: L
    head_norms: HeadNorms[V] | None
    output: L
    mlp_norm: V
    gate_up: L
    down: L


@dataclass(frozen=True)
class ModelWeights(Generic[V, L, E]):
    """A model, ready for its backend. `head` gives logits [T, V]."""

    embedding: E
    layers: Sequence[LayerWeights[V, L]]
    final_norm: V
    head: L


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a forward pass has to know beside the weights.

    windows: of each layer, how many tokens one sees, itself among them; None for all before it.
    cos, sin: float32 [positions, D'/2], rotary factors of every position; D' of D dimensions are rotated.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    windows: tuple[int | None, ...]
    cos: Floats
    sin: Floats


class Packer(Protocol[V_co, L_co, E]):
    """A backend, as who loads a model sees it. Arrays that it is given may be views of a file: it keeps none."""

    def describe(self) -> dict[str, str | int | float]: ...

    def takes_blocks(self, format: str, in_features: int) -> bool:
        """Whether weights of that format and width can be packed as they are. Where not, they come dense."""
        ...

    def vector(self, numbers: Array) -> V_co:
        """A norm's weight [n], of the compute dtype, for this backend."""
        ...

    def pack_parts(self, parts: Sequence[StoredWeight], bias: Array | None) -> L_co:
        """At most three weights, one below the other, each of a format that is taken."""
        ...

    def pack_gate_up(self, gate: StoredWeight, up: StoredWeight, bias: Array | None) -> L_co:
        """Gate and up of a feed-forward, for this backend's forward pass alone. `bias` is that of the gates, then
        that of the ups."""
        ...

    def pack_embedding(self, weight: StoredWeight) -> E: ...

    def tied_head(self, embedding: E) -> L_co:
        """The product with the table, where a model's head is tied to it. The two may share memory."""
        ...
