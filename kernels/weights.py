"""Weights on their way from a checkpoint to a backend, and their packed form.

V is a backend's type of vectors, L of packed matrices, E of embedding tables. Letters in shapes are those of
`kernels.ops`.
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
"""Unquantised numbers in the compute dtype: the weight format that every backend takes."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight [out_features, in_features] of a checkpoint.

    format: "dense", with `rows` [out_features, in_features] in the compute dtype; "int8" or "int4", with the same rows,
    which the backend is to quantise; or a GGUF block format by its lower-case name ("q4_0", "q6_k", ...), with `rows`
    uint8 [out_features, row bytes], the blocks as stored.
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
    """RMS norms of each query and key head before rotation: weights [D]."""

    query: V
    key: V
    eps: float


@dataclass(frozen=True)
class LayerWeights(Generic[V, L]):
    """One layer. `qkv`: q, k and v concatenated. `gate_up`: as packed by `Packer.pack_gate_up`."""

    attention_norm: V
    qkv: L
    head_norms: HeadNorms[V] | None
    output: L
    mlp_norm: V
    gate_up: L
    down: L


@dataclass(frozen=True)
class ModelWeights(Generic[V, L, E]):
    """A model packed for its backend. `head` computes logits [T, V]."""

    embedding: E
    layers: Sequence[LayerWeights[V, L]]
    final_norm: V
    head: L


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Parameters of a forward pass besides the weights.

    windows: sliding attention window of each layer in tokens, including the query's own; None for full attention.
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
    """A backend as seen by the model loader. Arrays passed to it may be views of a file and are not retained."""

    def describe(self) -> dict[str, str | int | float]: ...

    def takes_blocks(self, format: str, in_features: int) -> bool:
        """Whether weights of that format and width can be packed directly; otherwise they are passed dense."""
        ...

    def vector(self, numbers: Array) -> V_co:
        """A norm's weight [n] in the compute dtype."""
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
