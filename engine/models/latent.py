"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): its config, and its weights by heads."""

from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array
from kernels.layout import HeadShape

LATENT_EPS = 1e-6
"""Of the norms of latents, which no config states."""

MAX_LATENT_KEY = 576
"""Maximum of a latent's dimensions and the rotated ones: one key to the attention kernels. Published models have it."""


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """query_rank: dimensions of a query's latent; None: there is none. rank: of that of keys and values. rotated:
    leading dimensions of a query or key that are rotated; of keys they are the same in all heads. value_dim: of a
    head's value."""

    query_rank: int | None
    rank: int
    rotated: int
    value_dim: int

    @property
    def stored(self) -> HeadShape:
        """The KV of a token: one key for all heads, the rotated dimensions and then the latent, which is the value."""
        return HeadShape(1, self.rotated + self.rank, keys_only=True)

    def flaw(self, head_dim: int, max_width: int) -> str | None:
        """Why a model with these values, and heads of `head_dim` dimensions, cannot be served; None if it can."""
        if not 2 <= self.rotated < head_dim or not 1 <= self.value_dim <= head_dim:
            return f"{self.rotated} rotated and {self.value_dim} value dimensions of {head_dim}"
        if not (1 <= self.rank <= max_width and 1 <= (self.query_rank or 1) <= max_width):
            return f"ranks of {self.query_rank} and {self.rank}"
        if self.stored.dim % 2 or self.stored.dim > MAX_LATENT_KEY:
            sizes = f"a rank of {self.rank} and {self.rotated} rotated dimensions"
            return f"{sizes}: together not an even number up to {MAX_LATENT_KEY}"
        return None


def split_by_head(rows: Array, heads: int, value_dim: int) -> tuple[list[Array], list[Array]]:
    """Of `kv_b_proj` [Hq (D - rotated + Dv), rank], which has of each head the rows of its key, then of its value: what
    multiplies a head's queries [rank, D - rotated], and what makes its value of a latent [Dv, rank]."""
    of_heads = rows.reshape(heads, -1, rows.shape[1])
    keys, values = of_heads[:, :-value_dim], of_heads[:, -value_dim:]
    return [np.ascontiguousarray(key.T) for key in keys], list(values)
