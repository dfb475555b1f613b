"""The paged KV layout, shared by the allocator and every kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

BLOCK_TOKENS = 16
"""Tokens of KV in one block."""


def int8_block_bytes(kv_heads: int, head_dim: int, kinds: int = 2) -> int:
    """Bytes of one layer of a block in int8: one byte a number, followed by two bytes a scale. `kinds`: 2 of keys and
    values, 1 of keys alone."""
    return BLOCK_TOKENS * kinds * kv_heads * (head_dim + 2)


class HeadShape(NamedTuple):
    """The heads of a layer's attention: how many have keys and values, and the dimension of each. `has_values`: false
    where the keys, before their norm, are the values, too. `keys_only`: keys, as they are stored, are the values, too,
    and are stored once."""

    kv_heads: int
    dim: int
    has_values: bool = True
    keys_only: bool = False

    @property
    def kinds(self) -> int:
        """Vectors that a head stores of a token: a key and a value, or a key that is both."""
        return 1 if self.keys_only else 2

    @property
    def kv_numbers(self) -> int:
        """Numbers of a token's keys and values."""
        return self.kinds * self.kv_heads * self.dim


LayerSize = Callable[[HeadShape], int]


def block_numbers(heads: HeadShape) -> int:
    """Numbers of one layer of a block."""
    return BLOCK_TOKENS * heads.kv_numbers


def int8_layer_bytes(heads: HeadShape) -> int:
    """Bytes of one layer of a block in int8: see `int8_block_bytes`."""
    return int8_block_bytes(heads.kv_heads, heads.dim, heads.kinds)


@dataclass(frozen=True, slots=True)
class MixedBlocks:
    """Blocks of layers whose heads differ: [1, N, size], of each block the layers of its group one after the other. A
    group of less than the largest size leaves the end of its blocks unused.

    heads: of each layer with KV. groups: the group of each.
    """

    heads: tuple[HeadShape, ...]
    groups: tuple[int, ...]

    def starts(self, size_of: LayerSize) -> tuple[list[int], int]:
        """Where each layer begins in a block, and a block's size, in units of `size_of`."""
        ends: dict[int, int] = {}
        starts = []
        for heads, group in zip(self.heads, self.groups, strict=True):
            starts.append(ends.get(group, 0))
            ends[group] = starts[-1] + size_of(heads)
        return starts, max(ends.values())
