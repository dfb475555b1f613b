"""The rows of projections in files, where these are not in the order of `engine.models.layout`, or where a matrix holds
those of several."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.models.config import MAX_WIDTH, ModelConfig, UnsupportedCheckpoint
from engine.models.latent import LatentConfig
from kernels.arrays import Ints


def half_split_order(heads: int, head_dim: int, rotated: int) -> Ints:
    """The rows of `heads` heads in the order of half-split rope, of a file in that of interleaved rope.

    Interleaved rope rotates dimensions 2i and 2i + 1 of a head together, half-split rope i and i + rotated / 2: the
    even dimensions come first, then the odd ones; those past the `rotated` ones stay.
    """
    return _by_head(heads, np.concatenate((_halves(rotated), np.arange(rotated, head_dim))))


def latent_query_order(config: ModelConfig, latent: LatentConfig) -> Ints:
    """The rows of the queries of latent attention, of a file that has a head's rotated dimensions last, interleaved."""
    plain = config.head_dim - latent.rotated
    return _by_head(config.num_heads, np.concatenate((plain + _halves(latent.rotated), np.arange(plain))))


def latent_key_order(latent: LatentConfig) -> Ints:
    """The rows of the latent and of the rotated dimensions of keys, of a file that has these interleaved."""
    return np.concatenate((np.arange(latent.rank), latent.rank + _halves(latent.rotated)))


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """A matrix whose heads each have `sizes` rows of several parts. modules: the indices of its parts, by the name of
    each module whose rows the matrix holds."""

    heads: int
    sizes: tuple[int, ...]
    modules: Mapping[str, tuple[int, ...]]

    @property
    def total(self) -> int:
        """Rows of the matrix."""
        return self.heads * sum(self.sizes)

    def count(self, module: str) -> int:
        """Rows of a module."""
        return self.heads * sum(self.sizes[part] for part in self.modules[module])

    def rows(self, module: str) -> Ints:
        """The rows of a module: those of its first part in all heads, then of its next.

        Raises:
            UnsupportedCheckpoint: no real model has as many rows.
        """
        if self.total > MAX_WIDTH:
            raise UnsupportedCheckpoint(f"{module}: {self.total} rows of {self.heads} heads")
        of_heads = np.arange(self.total).reshape(self.heads, sum(self.sizes))
        parts = np.split(of_heads, np.cumsum(self.sizes)[:-1], axis=1)
        rows: Ints = np.concatenate([parts[part].ravel() for part in self.modules[module]])
        return rows


def gated_query(config: ModelConfig) -> HeadSplit:
    """`q_proj` of gated attention: of each head the query, then the gate."""
    sizes = (config.head_dim, config.head_dim)
    return HeadSplit(config.num_heads, sizes, {"self_attn.q_proj": (0,), "self_attn.gate_proj": (1,)})


def delta_inputs(config: ModelConfig) -> HeadSplit:
    """Qwen3-Next's `in_proj_qkvz`: of each key head its query, key, values and output gates."""
    linear = config.linear
    assert linear is not None, "a hybrid model without its sizes"
    values = linear.value_heads // linear.key_heads * linear.value_dim
    sizes = (linear.key_dim, linear.key_dim, values, values)
    modules = {"linear_attn.in_proj_qkv": (0, 1, 2), "linear_attn.in_proj_z": (3,)}
    return HeadSplit(linear.key_heads, sizes, modules)


def delta_gates(config: ModelConfig) -> HeadSplit:
    """Qwen3-Next's `in_proj_ba`: of each key head its betas and its decays."""
    linear = config.linear
    assert linear is not None, "a hybrid model without its sizes"
    group = linear.value_heads // linear.key_heads
    modules = {"linear_attn.in_proj_b": (0,), "linear_attn.in_proj_a": (1,)}
    return HeadSplit(linear.key_heads, (group, group), modules)


def _halves(rotated: int) -> Ints:
    """The even dimensions, then the odd ones."""
    return np.concatenate((np.arange(0, rotated, 2), np.arange(1, rotated, 2)))


def _by_head(heads: int, of_head: Ints) -> Ints:
    order: Ints = (np.arange(heads)[:, None] * len(of_head) + of_head).ravel()
    return order
