"""The config of gated delta nets."""

from dataclasses import dataclass

from kernels.delta import DeltaShape

MAX_DELTA_DIM = 512
"""Maximum dimension of a head; real models have 128."""
DELTA_DIM_UNIT = 16
"""Dimensions are multiples of it: kernels compute whole vectors."""
MAX_TAPS = 16


@dataclass(frozen=True, slots=True)
class LinearAttentionConfig:
    """Gated delta nets (Yang et al., arXiv 2412.06464) in place of attention: of `key_heads` heads of queries and keys,
    each for `value_heads / key_heads` heads of values, after a causal convolution of `taps` tokens. `tiled`: see
    `DeltaShape`."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    tiled: bool = False

    @property
    def shape(self) -> DeltaShape:
        return DeltaShape(self.key_heads, self.value_heads, self.key_dim, self.value_dim, self.taps, self.tiled)

    def flaw(self) -> str | None:
        """Why a model with these values cannot be served; None if it can."""
        for name, dim in (("key", self.key_dim), ("value", self.value_dim)):
            if not 0 < dim <= MAX_DELTA_DIM or dim % DELTA_DIM_UNIT:
                return f"{name} heads of {dim} dimensions; must be a multiple of {DELTA_DIM_UNIT} up to {MAX_DELTA_DIM}"
        if self.key_heads < 1 or self.value_heads < 1 or self.value_heads % self.key_heads:
            return f"{self.key_heads} key heads do not divide {self.value_heads} value heads"
        return None if 2 <= self.taps <= MAX_TAPS else f"a convolution of {self.taps} tokens is not in 2..{MAX_TAPS}"
