"""The up-projection of latent attention in two tensors, as files for attention over latents have it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.checkpoints.gguf.names import StoredPart
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.layout import Shape
from kernels.arrays import Array


@dataclass(frozen=True, slots=True)
class LatentPair:
    """key: [Hq, rank, D - rotated], each head's rows and columns swapped; value: [Hq, Dv, rank]."""

    key: StoredPart
    value: StoredPart

    @property
    def shape(self) -> Shape:
        """Of the matrix that the two make."""
        heads, rank, own = self.key.shape
        return heads * (own + self.value.shape[1]), rank

    @property
    def bytes(self) -> int:
        return self.key.bytes + self.value.bytes


def taken_pairs(stored: dict[str, StoredPart], config: ModelConfig) -> Mapping[str, LatentPair]:
    """The pairs by the layout's name of their matrix, removed from `stored`.

    Raises:
        UnsupportedCheckpoint: one of a pair is missing, or has another shape than the config says.
    """
    pairs: dict[str, LatentPair] = {}
    latent = config.latent
    if latent is None:
        return pairs
    for layer in range(config.num_layers):
        prefix, block = f"model.layers.{layer}.self_attn", f"blk.{layer}"
        key = stored.pop(f"{prefix}.k_b_proj.weight", None)
        value = stored.pop(f"{prefix}.v_b_proj.weight", None)
        if key is None and value is None:
            continue
        key, value = _present(key, f"{block}.attn_k_b.weight"), _present(value, f"{block}.attn_v_b.weight")
        _check(key, (config.num_heads, latent.rank, config.head_dim - latent.rotated))
        _check(value, (config.num_heads, latent.value_dim, latent.rank))
        name = f"{prefix}.kv_b_proj.weight"
        if name in stored:
            raise UnsupportedCheckpoint(f"tensor {key.info.name}: {block}.attn_kv_b.weight is in the file, too")
        pairs[name] = LatentPair(key, value)
    return pairs


def joined(key: Array, value: Array) -> Array:
    """[Hq (D - rotated + Dv), rank] of a pair: of each head the rows of its key, then of its value."""
    matrix: Array = np.concatenate((key.swapaxes(1, 2), value), axis=1).reshape(-1, value.shape[2])
    return matrix


def _present(part: StoredPart | None, name: str) -> StoredPart:
    if part is None:
        raise UnsupportedCheckpoint(f"tensor {name} is missing")
    return part


def _check(part: StoredPart, shape: Shape) -> None:
    if part.shape != shape:
        raise UnsupportedCheckpoint(f"tensor {part.info.name} has shape {list(part.shape)}, not {list(shape)}")
